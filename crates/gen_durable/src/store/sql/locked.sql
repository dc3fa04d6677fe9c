-- called by: store::step_results::locked     index: instances_pkey
-- locks: instances FOR NO KEY UPDATE by id until the statement ends, skipping rows that another
-- transaction holds
-- Returns the ids of the instances that another transaction has locked; ids of deleted instances
-- are left out.
with free as materialized (
    select id from gen_durable.instances where id = any ($1) order by id for no key update skip locked
)
select i.id from gen_durable.instances i where i.id = any ($1) and not exists (select from free where free.id = i.id)
