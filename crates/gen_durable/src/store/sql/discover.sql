-- called by: store::events::discover     index: events_unplaced_all, events_pkey
-- locks: nothing
select tenant, unplaced, arrival_no, looked, pos from gen_durable._discover($1::text::pg_snapshot, $2, $3)
