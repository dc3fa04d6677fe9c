-- called by: store::lease::retire     index: workers_pkey, instances_held
-- locks: this worker's row
-- Deletes the row of a stopping worker. If the worker still holds claims, the row stays, so
-- that the reaper finds these claims by the row.
delete from gen_durable.workers w
where w.id = $1::text::uuid
  and not exists (select from gen_durable.instances i where i.locked_by = w.id)
