-- called by: store::signal::cancel     index: instances_pkey or instances_key
-- locks: the instance; then its parent
select gen_durable.cancel($1, $2, $3, $4, $5)
