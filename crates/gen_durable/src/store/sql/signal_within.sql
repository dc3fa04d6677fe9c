-- called by: store::signal::deliver_within     index: instances_pkey or instances_key; signals_dedup
-- locks: the target's row
select gen_durable.signal($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8)
