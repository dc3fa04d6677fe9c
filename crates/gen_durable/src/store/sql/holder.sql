-- called by: store::search::Inspect::holder, store::signal::cancel     index: instances_key
-- locks: nothing
-- Returns the live instance that has this key.
select i.id from gen_durable.instances i where i.tenant = $1 and i.held_key = $2
