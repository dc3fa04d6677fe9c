-- called by: store::step_results, for instances with a lane or a partition key     index: instances_pkey, signals_inbox; instances_lane, instances_partition_waiting
-- locks: instances by id, for at most the lock timeout; then their successors, then lanes, as
-- `_promote_successors` does
select * from gen_durable._write_keyed_step_results($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::uuid, $16, $17)
