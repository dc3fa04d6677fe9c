-- called by: store::signal::cancel_below     index: instances_children, instances_pkey
-- locks: the children that have not settled by id, from the youngest, each for at most $6; then
-- their parents
select children, parents_read, next_generation, next_after, cancelled from gen_durable._cancel_below($1, $2, $3, $4, $5, $6)
