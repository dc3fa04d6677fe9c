-- called by: store::runs::open     index: projection_runs_pkey, projections_pkey, events_log
-- locks: the scope's row if requested, then the run's row; skips the run's row if another
-- transaction holds it
select * from gen_durable._run_open($1, $2, $3::text::uuid, $4, $5, $6, $7, $8)
