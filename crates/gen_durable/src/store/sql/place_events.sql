-- called by: store::events::place     index: event_heads_pkey, events_unplaced, events_log
-- locks: log heads in tenant order, skipping heads that another transaction holds; then the events
-- that receive a position
select tenant, placed from gen_durable._place_events($1, $2)
