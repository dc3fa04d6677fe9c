-- called by: store::settle::lock_free     index: instances_pkey
-- locks: instances FOR NO KEY UPDATE by id, skipping what somebody else holds
select id from gen_durable.instances where id = any ($1) order by id for no key update skip locked
