-- called by: store::family::page     index: instances_pkey, instances_children
-- locks: nothing
select gen_durable._children_of(p.id, p.join_generation, $2, $3) as children from gen_durable.instances p where p.id = $1
