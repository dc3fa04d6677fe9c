-- called by: store::lease::retire     index: workers_pkey, instances_held; lanes_worker, instances_lane
-- locks: this worker's row
-- Deletes the row of a stopping worker. If the worker still holds claims or runs heads of lanes,
-- the row stays, so that the reaper finds these claims and heads by the row.
delete from gen_durable.workers w
where w.id = $1::text::uuid
  and not exists (select from gen_durable.instances i where i.locked_by = w.id)
  and not exists (select from gen_durable._worker_lane_heads(w.id, '', '', 2147483647) h where h.status = 'queued')
