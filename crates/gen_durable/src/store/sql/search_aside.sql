-- called by: store::search::page, for a status that has an index     index: instances_aside, instances_held
-- locks: nothing
-- Searches the instances of one status, and reads at most as many rows as search.sql. The ORDER BY
-- begins with the status, so that the planner uses the index on the status: with an order by id
-- alone, the planner may scan the primary key and read all done instances.
select looked.id, looked.tenant, looked.machine, looked.machine_version, looked.step, looked.status::text, looked.queue, looked.priority,
    looked.attempt, looked.eligible_at, looked.inserted_at, looked.updated_at, looked.settled_at, looked.key,
    looked.parent_id, left(looked.last_error, 500) as last_error, looked.awaits
from (
    (select i.* from gen_durable.instances i
     where $5::text <> 'executing'
       and i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= $5::text::gen_durable.durable_status
       and (i.status, i.id) < ($5::text::gen_durable.durable_status, coalesce($1::bigint, 9223372036854775807))
     order by i.status desc, i.id desc
     limit $2)
    union all
    (select i.* from gen_durable.instances i
     where $5::text = 'executing' and i.status = 'executing' and ($1::bigint is null or i.id < $1)
     order by i.locked_by, i.id desc
     limit $2)
) looked
where ($4::text is null or looked.machine = $4)
  and ($6::text is null or looked.step = $6)
  and ($7::text is null or looked.queue = $7)
  and ($8::text is null or looked.tenant = $8)
  and ($9::text is null or looked.key = $9)
  and ($10::text is null or position(lower($10) in lower(looked.last_error)) > 0)
  and ($11::timestamptz is null or looked.inserted_at >= $11)
  and ($12::timestamptz is null or looked.inserted_at < $12)
  and ($13::int is null or looked.machine_version = $13)
order by looked.status desc, looked.id desc
limit $3
