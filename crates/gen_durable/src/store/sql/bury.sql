-- called by: store::lease::bury     index: workers_pkey, instances_held
-- locks: the dead worker's row
delete from gen_durable.workers w
where w.id = $1::text::uuid and w.lease_expires_at < statement_timestamp()
  and not exists (select from gen_durable.instances i where i.locked_by = w.id and i.status = 'executing')
