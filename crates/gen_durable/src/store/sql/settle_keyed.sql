-- called by: store::settle, for what has a lane or a partition key     index: instances_pkey, signals_inbox; instances_lane, instances_waiting
-- locks: instances by id, for at most the lock timeout; then their lanes; then who is next, skipping what somebody holds
select * from gen_durable.settle_keyed($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::uuid, $16, $17)
