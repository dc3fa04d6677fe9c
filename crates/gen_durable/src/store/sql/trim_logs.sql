-- called by: store::events::_trim_logs     index: log_walks_pkey, events_log, projections_pkey, projections_by_name, projection_runs_open
-- locks: the row of log_walks, skipping the row if another worker holds it; then the events that
-- this statement deletes
select * from gen_durable._trim_logs($1, $2, $3, $4, $5)
