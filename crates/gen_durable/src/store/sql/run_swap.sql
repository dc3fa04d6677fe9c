-- called by: store::runs::swap     index: projection_runs_pkey, projections_pkey
-- locks: the rows of the scope and of the run, which this transaction already holds
select gen_durable._run_swap($1, $2)
