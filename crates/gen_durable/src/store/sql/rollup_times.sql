-- called by: store::rollup::read     index: rollups_pkey
-- locks: nothing
-- Returns the time of the schema's clock, and the oldest bucket of one length.
select gen_durable.clock() as now,
    (select min(r.bucket) from gen_durable.rollups r where r.seconds = $1) as oldest
