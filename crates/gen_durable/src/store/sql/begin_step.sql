-- called by: store::lease::begin_step     index: instances_pkey
-- locks: the instance's row; skips the row if another transaction holds it
-- Records in the row of a claimed instance, before a worker runs the step, that the step begins.
-- Workers send this statement only for instances with crash_count > 0: since the last commit of the
-- instance, a worker crashed while it held the claim. If the sending worker crashes too, the reaper
-- counts the crash only if the step had begun. Returns whether the statement recorded the start,
-- and whether the claim is still valid.
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
select exists (select from begun) as recorded,
    exists (select from gen_durable.instances i where i.id = $1 and i.claim_epoch = $2 and i.step_seq = $3) as valid
