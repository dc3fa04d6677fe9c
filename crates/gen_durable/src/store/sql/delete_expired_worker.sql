-- called by: store::lease::delete_expired_worker     index: workers_pkey, instances_held
-- locks: the expired worker's row
-- Deletes the row of an expired worker if the worker has no claims.
delete from gen_durable.workers w
where w.id = $1::text::uuid and w.lease_expires_at < statement_timestamp()
  and not exists (select from gen_durable.instances i where i.locked_by = w.id)
