-- called by: store::runs::pass_over     index: projection_run_failures_pkey
-- locks: no existing rows, or the row of the same event
-- Records an event that a run skipped because the projection could not apply it.
insert into gen_durable.projection_run_failures as f (run_id, position, error) values ($1, $2, $3)
on conflict (run_id, position) do update set error = excluded.error
