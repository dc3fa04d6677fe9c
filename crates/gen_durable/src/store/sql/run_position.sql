-- called by: store::runs::position_in     index: projection_runs_pkey
-- locks: nothing
select r.position from gen_durable.projection_runs r where r.id = $1 and r.finished_at is null
