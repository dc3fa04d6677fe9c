-- called by: store::search::Inspect::holder, store::signal::cancel     index: instances_key
-- locks: nothing
select i.id from gen_durable.instances i where i.tenant = $1 and i.correlation_guard = $2
