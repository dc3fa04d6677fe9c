-- called by: store::audit::end     index: audit_pkey
-- locks: the audit row
update gen_durable.audit a
set action = $2, subject = $3, succeeded = $4, outcome = $5, ended_at = gen_durable.clock()
where a.id = $1 and a.ended_at is null
returning true
