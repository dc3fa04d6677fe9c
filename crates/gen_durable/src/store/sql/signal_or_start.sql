-- called by: store::signal::signal_or_start     index: instances_key; signals_dedup
-- locks: the holder's row, or nothing that exists; waits for a transaction that is about to take the same key
select answer, id, is_new, eligible_at from gen_durable.signal_or_start($1::text::jsonb, $2, $3::text::jsonb, $4, $5, $6)
