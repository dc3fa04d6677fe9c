-- called by: store::runs::cleared     index: projection_runs_pkey
-- locks: the run's row, which this transaction already holds
update gen_durable.projection_runs r set retired = null where r.id = $1
