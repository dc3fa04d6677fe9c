-- called by: store::settle::lock     index: instances_pkey
-- locks: instances FOR NO KEY UPDATE by id, skipping what another transaction has locked
-- Returns the rows that were skipped. A row that is gone is not among them.
with free as materialized (
    select id from gen_durable.instances where id = any ($1) order by id for no key update skip locked
)
select i.id from gen_durable.instances i where i.id = any ($1) and not exists (select from free where free.id = i.id)
