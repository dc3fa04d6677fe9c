-- called by: store::inspect::end_of     index: instances_pkey
-- locks: nothing
select id, status::text, machine, result::text, last_error, attempt, failures from gen_durable.instances where id = any ($1)
