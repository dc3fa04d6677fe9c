-- called by: store::projections::open     index: projections_pkey, events_log, projection_failures_pkey, projection_runs_open
-- locks: the scope's row; skips the row if another transaction holds it
select * from gen_durable._project_open($1, $2, $3, $4::text::uuid, $5, $6, $7, $8, $9)
