-- called by: store::runs::swap     index: projection_runs_pkey, projections_pkey
-- locks: the scope's row and the run's, which the transaction holds already
select gen_durable.run_swap($1, $2)
