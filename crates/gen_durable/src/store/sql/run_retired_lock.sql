-- called by: store::runs::lock_retired     index: projection_runs_pkey
-- locks: the run's row; skips the row if another transaction holds it
select r.retired from gen_durable.projection_runs r where r.id = $1 and r.retired is not null for no key update skip locked
