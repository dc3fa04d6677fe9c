-- called by: store::projections::retry     index: projections_pkey
-- locks: the scope's row
-- Makes the scope due for a retry now: all workers find due scopes by `retry_at`.
update gen_durable.projections p
set status = 'running', attempts = 0, retry_at = gen_durable.clock(), updated_at = gen_durable.clock()
where p.tenant = $1 and p.projection = $2 and p.status <> 'running'
returning true
