-- called by: store::family::children     index: instances_children
-- locks: nothing
select looked.status::text, count(*) as count
from (select c.status from gen_durable.instances c where c.parent_id = $1 limit $2) looked
group by 1
order by 1
