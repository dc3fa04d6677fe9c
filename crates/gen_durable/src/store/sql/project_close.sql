-- called by: store::projections::close     index: projections_pkey, projection_failures_pkey, projection_runs_open
-- locks: the scope's row, then the row of the scope's open run
select gen_durable._project_close($1, $2, $3, $4, $5, $6, $7::text::uuid, $8)
