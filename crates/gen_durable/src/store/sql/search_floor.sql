-- called by: store::search::page, when a page is not full     index: instances_pkey, backwards; instances_aside
-- locks: nothing
-- Returns the lowest id that a search has read. The next page begins below that id; if no row has a
-- smaller id, the search is complete.
select min(looked.id) as lowest, count(*) as rows_read
from (
    (select i.id from gen_durable.instances i
     where $3::text is null and ($1::bigint is null or i.id < $1)
     order by i.id desc
     limit $2)
    union all
    (select i.id from gen_durable.instances i
     where $3::text is not null
       and i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= $3::text::gen_durable.durable_status
       and (i.status, i.id) < ($3::text::gen_durable.durable_status, coalesce($1::bigint, 9223372036854775807))
     order by i.status desc, i.id desc
     limit $2)
) looked
