-- called by: store::runs::outage     index: projection_runs_pkey
-- locks: the run's row
-- Counts a batch of a run that the server cancelled or that lost its connection. Returns how many
-- such batches followed one another.
update gen_durable.projection_runs r
set attempts = r.attempts + 1, error = $2, updated_at = gen_durable.clock()
where r.id = $1 and r.finished_at is null
returning r.attempts
