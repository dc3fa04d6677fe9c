-- called by: store::lease::begin_step     index: instances_pkey
-- locks: the instance's row, if no other transaction holds it
-- Records that the step of a claimed row begins, before it runs. Only for a row that a worker has died with since its last commit
-- (crash_count > 0): if its worker dies too, the reaper blames the rows that had begun. Returns whether it was recorded, and whether the claim
-- is still good.
with free as materialized (
    select i.id from gen_durable.instances i
    where i.id = $1 and i.claim_epoch = $2 and i.step_seq = $3
    for no key update skip locked
),
begun as (
    update gen_durable.instances i set begun_epoch = i.claim_epoch
    from free where i.id = free.id
    returning i.id
)
select exists (select from begun),
    exists (select from gen_durable.instances i where i.id = $1 and i.claim_epoch = $2 and i.step_seq = $3)
