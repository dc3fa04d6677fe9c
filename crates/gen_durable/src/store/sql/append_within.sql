-- called by: store::events::within     index: event_heads_pkey, events_log, events_unplaced, event_scans_pkey
-- locks: no log heads ($8 is 'none'): workers assign the log positions of the events after the
-- caller's transaction has committed
select pos, arrival_no from gen_durable._append($1, $2, $3, $4, $5, $6, $7, $8)
