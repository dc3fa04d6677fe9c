-- called by: store::events::place     index: event_heads_pkey, events_unplaced, events_log
-- locks: heads in the order of tenants, skipping what somebody holds; the events that it places
select tenant, placed from gen_durable.place_events($1, $2)
