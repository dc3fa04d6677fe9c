-- called by: store::pick::claim     index: instances_pick, instances_fair, instances_suspects, instances_pkey; placement_watermarks_pkey; instances_arrival_no for `_place`
-- locks: instances FOR NO KEY UPDATE SKIP LOCKED in the order of (priority, eligible_at, id); if
-- limits are declared, limit_locks, for at most 50 ms. Without limits the statement never waits
-- for a lock.
select * from gen_durable._pick($1, $2, $3, $4, $5, $6, $7, $8::text::uuid, $9, $10, $11, $12, $13, $14)
