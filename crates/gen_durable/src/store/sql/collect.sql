-- called by: store::collect::collect     index: instances_settled, instances_pkey, collect_cursors_pkey
-- locks: the rows of collect_cursors and the instances, skipping rows that another transaction
-- holds (see gen_durable._collect)
select c.deleted, c.more from gen_durable._collect($1, $2, $3, $4) c
