-- called by: store::settle, for what has a lane or a partition key     index: instances_pkey, signals_inbox; instances_lane, instances_waiting
-- locks: instances by id, for at most the lock timeout; then who is next, then lanes, as hand_over says
select * from gen_durable.settle_keyed($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16::text::uuid, $17, $18)
