-- called by: store::runs::verdict     index: projection_runs_pkey
-- locks: the run's row
update gen_durable.projection_runs r set verdict = $2, updated_at = gen_durable.clock() where r.id = $1 and r.finished_at is null
