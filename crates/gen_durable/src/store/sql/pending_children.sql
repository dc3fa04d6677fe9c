-- called by: store::explain::pending     index: instances_children
-- locks: nothing
select c.id, c.machine, c.step, c.status::text
from gen_durable.instances c
where c.parent_id = $1 and c.parent_generation = $2 and c.settled_at is null
order by c.id
limit $3
