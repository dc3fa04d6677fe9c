-- called by: store::runs::cancel     index: projection_runs_pkey
-- locks: the run's row; waits until the transaction that applies a batch of the run ends
update gen_durable.projection_runs r
set status = 'cancelled', error = $2, finished_at = gen_durable.clock(), updated_at = gen_durable.clock(),
    retired = case when r.kind in ('shadow', 'verify') then r.generation end
where r.id = $1 and r.finished_at is null
returning true
