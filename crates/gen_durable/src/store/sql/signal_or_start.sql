-- called by: store::signal::signal_or_start     index: instances_key; signals_dedup
-- locks: the row of the instance that has the key, or no existing row; waits for a transaction that
-- has inserted the same key and not committed yet
select answer, id, is_new, eligible_at from gen_durable.signal_or_start($1::text::jsonb, $2, $3::text::jsonb, $4, $5, $6)
