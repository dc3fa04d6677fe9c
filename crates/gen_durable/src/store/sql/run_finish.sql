-- called by: store::runs::finish     index: projection_runs_pkey
-- locks: the run's row
-- Finishes a run. If the run wrote rows of a generation that readers do not see, the statement
-- marks that generation as retired, and a worker deletes the rows later.
update gen_durable.projection_runs r
set status = $2, error = $3, verdict = coalesce($4, r.verdict), finished_at = gen_durable.clock(), updated_at = gen_durable.clock(),
    retired = case when r.kind in ('shadow', 'verify') then r.generation end
where r.id = $1 and r.finished_at is null
returning true
