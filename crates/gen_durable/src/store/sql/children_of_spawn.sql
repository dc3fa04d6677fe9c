-- called by: store::family::counts     index: instances_pkey, instances_children
-- locks: nothing
-- Counts the children of an instance's last spawn by status. Reads all of these children, so the
-- cost grows with their number.
select c.status::text, count(*) as count
from gen_durable.instances p
join gen_durable.instances c on c.parent_id = p.id and c.parent_generation = p.join_generation
where p.id = $1
group by 1
