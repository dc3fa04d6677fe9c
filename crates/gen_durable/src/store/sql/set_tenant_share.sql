-- called by: store::fair::set_share     index: queues_pkey
-- locks: the row of the queue
select gen_durable.set_tenant_share($1, $2, $3)
