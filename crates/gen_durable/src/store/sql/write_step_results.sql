-- called by: store::step_results::write     index: instances_pkey, signals_inbox for instances that run ahead
-- locks: instances by id, in the order of the arrays, for at most the lock timeout $13
select id, inbox, children from gen_durable._write_step_results($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
