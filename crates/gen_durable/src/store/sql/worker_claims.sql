-- called by: store::inspect::claims     index: instances_held
-- locks: nothing
-- Returns the ids of the instances that a worker has claimed, the smallest first.
select i.id
from gen_durable.instances i
where i.locked_by = $1::text::uuid
order by i.id
limit $2
