-- called by: store::rollup::add     index: rollup_lock_pkey, rollup_writers_pkey, rollups_pkey
-- locks: the rollup lock, skipped if another transaction holds it; then the worker's row in
-- rollup_writers, and rows of rollups
-- Adds a batch of counts of a worker to the rollups. False: another transaction holds the lock.
select gen_durable._add_rollups($1::text::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) as is_added
