-- called by: store::fair::due_tenants     index: instances_fair, one probe per tenant; instances_pick
-- locks: instances that are not in instances_fair yet, FOR NO KEY UPDATE SKIP LOCKED
select priority, tenant, eligible_at, id from gen_durable._due_tenants($1, $2, $3)
