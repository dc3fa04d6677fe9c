-- called by: store::resolve::resolve     index: instances_pkey
-- locks: instances FOR NO KEY UPDATE by id, skipping rows that another transaction holds: the
-- backend of the lost connection may still be committing, or a caller's transaction holds the row.
-- The statement returns a skipped row without a claim, and the worker asks for it again later.
with free as materialized (
    select id, claim_epoch, step_seq from gen_durable.instances where id = any ($1) order by id
    for no key update skip locked
)
select i.id, free.claim_epoch, free.step_seq
from gen_durable.instances i
left join free on free.id = i.id
where i.id = any ($1)
