-- called by: store::audit::end     index: audit_pkey
-- locks: the audit row
update gen_durable.audit a
set act = $2, subject = $3, went_well = $4, outcome = $5, ended_at = gen_durable.clock()
where a.id = $1 and a.ended_at is null
returning true
