-- called by: store::search::page, for executing instances     index: instances_held
-- locks: nothing
-- Searches the instances that workers run now. The concurrency of the workers limits their number.
-- The inner ORDER BY is that of the index, so that the planner uses it.
select looked.id, looked.tenant, looked.machine, looked.machine_version, looked.step, looked.status::text, looked.queue, looked.priority,
    looked.attempt, looked.eligible_at, looked.inserted_at, looked.updated_at, looked.settled_at, looked.key,
    looked.parent_id, left(looked.last_error, 500) as last_error, looked.awaits
from (
    select i.* from gen_durable.instances i
    where i.status = 'executing' and i.id < $1 and i.id >= $2
    order by i.locked_by
    limit $3
) looked
where ($5::text is null or looked.machine = $5)
  and ($6::int is null or looked.machine_version = $6)
  and ($7::text is null or looked.step = $7)
  and ($8::text is null or looked.queue = $8)
  and ($9::text is null or looked.tenant = $9)
  and ($10::text is null or looked.lane_key = $10)
  and ($11::text is null or looked.partition_key = $11)
  and ($12::text is null or position(lower($12) in lower(looked.last_error)) > 0)
  and ($13::timestamptz is null or looked.inserted_at >= $13)
  and ($14::timestamptz is null or looked.inserted_at < $14)
order by case when $15 then looked.id else -looked.id end
limit $4
