-- called by: store::projections::fail     index: projections_pkey, projection_failures_pkey
-- locks: the scope's row
select gen_durable._project_fail($1, $2, $3, $4, $5, $6, $7)
