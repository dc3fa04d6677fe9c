-- called by: store::events::within     index: event_heads_pkey, events_log, events_unplaced, event_scans_pkey
-- locks: the log heads of the tenants, in tenant order, until the caller's transaction ends; or
-- none
select pos, arrival_no from gen_durable._append($1, $2, $3, $4, $5, $6, $7, $8)
