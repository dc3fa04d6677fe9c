-- called by: store::family::children     index: instances_children
-- locks: nothing
-- Returns children of an instance. The children of the instance's last spawn are first.
select c.id, c.machine, c.step, c.status::text, c.parent_generation, left(c.last_error, 300) as last_error, c.inserted_at, c.settled_at,
    c.join_generation > 0 as is_parent
from gen_durable.instances c
where c.parent_id = $1
order by c.parent_generation desc, c.id desc
limit $2
