-- called by: store::events::within     index: event_heads_pkey, events_log, events_unplaced, event_looks_pkey
-- locks: the heads of the tenants' logs, in the order of tenants, until the commit; or none
select pos, arrival from gen_durable.append($1, $2, $3, $4, $5, $6, $7, $8)
