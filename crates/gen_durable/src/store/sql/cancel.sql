-- called by: store::signal::cancel     index: instances_pkey or instances_key; instances_children
-- locks: the instances by id, from the youngest; then their parents
select gen_durable.cancel($1, $2, $3, $4, $5, $6)
