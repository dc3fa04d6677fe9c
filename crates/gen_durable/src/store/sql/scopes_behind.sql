-- called by: store::projections::behind     index: projections_retry, event_heads_pkey, projections_pkey, events_log, log_walks_pkey
-- locks: rows of log_walks, skipping rows that another worker holds
select * from gen_durable._scopes_behind($1, $2, $3, $4::text::uuid, $5, $6, $7, $8)
