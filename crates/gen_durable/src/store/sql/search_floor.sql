-- called by: store::search::page, when a page is not full     index: instances_pkey, backwards; instances_aside
-- locks: nothing
-- How far down a search has looked: there it goes on. Without a row below, it was all.
select min(looked.id), count(*)
from (
    (select i.id from gen_durable.instances i
     where $3::text is null and ($1::bigint is null or i.id < $1) order by i.id desc limit $2)
    union all
    (select i.id from gen_durable.instances i
     where $3::text = 'failed' and i.status = 'failed' and ($1::bigint is null or i.id < $1) order by i.id desc limit $2)
    union all
    (select i.id from gen_durable.instances i
     where $3::text = 'stuck' and i.status = 'stuck' and ($1::bigint is null or i.id < $1) order by i.id desc limit $2)
    union all
    (select i.id from gen_durable.instances i
     where $3::text = 'cancelled' and i.status = 'cancelled' and ($1::bigint is null or i.id < $1) order by i.id desc limit $2)
    union all
    (select i.id from gen_durable.instances i
     where $3::text = 'awaiting_signal' and i.status = 'awaiting_signal' and ($1::bigint is null or i.id < $1) order by i.id desc limit $2)
    union all
    (select i.id from gen_durable.instances i
     where $3::text = 'awaiting_children' and i.status = 'awaiting_children' and ($1::bigint is null or i.id < $1)
     order by i.id desc limit $2)
) looked
