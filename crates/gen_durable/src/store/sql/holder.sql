-- called by: store::search::holder, store::signal::cancel     index: instances_key
-- locks: nothing
-- Returns the instance that holds this key of this tenant.
select i.id from gen_durable.instances i where i.tenant = $1 and i.held_key = $2
