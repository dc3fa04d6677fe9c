-- called by: store::runs::outage     index: projection_runs_pkey
-- locks: the run's row
-- Counts a batch of a run that failed because the server cancelled a statement or the connection
-- broke. Returns how many such batches of the run failed one after the other.
update gen_durable.projection_runs r
set attempts = r.attempts + 1, error = $2, updated_at = gen_durable.clock()
where r.id = $1 and r.finished_at is null
returning r.attempts
