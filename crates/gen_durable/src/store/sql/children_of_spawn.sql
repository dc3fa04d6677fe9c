-- called by: store::family::counts     index: instances_pkey, instances_children
-- locks: nothing
-- Counts the children of the last spawn by status. Reads every one of them, so the cost grows with
-- their number.
select c.status::text, count(*)
from gen_durable.instances p
join gen_durable.instances c on c.parent_id = p.id and c.parent_generation = p.join_generation
where p.id = $1
group by 1
