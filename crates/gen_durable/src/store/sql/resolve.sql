-- called by: store::settle::resolve     index: instances_pkey
-- locks: instances FOR NO KEY UPDATE by id, waiting: the backend that we lost may still be committing
select id, claim_epoch, step_seq from gen_durable.instances where id = any ($1) order by id for no key update
