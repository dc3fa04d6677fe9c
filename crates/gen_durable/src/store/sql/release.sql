-- called by: store::lease::release     index: instances_pkey
-- locks: instances by id, in order, skipping rows that another transaction holds
-- Frees the lanes and partition keys of cancelled instances after their steps have ended. Finds an
-- instance by the claim that its step had, since the cancel raised the instance's claim_epoch by
-- one. Returns the instances that another transaction has locked, so that the caller tries them
-- again, and the instances that the statement released.
with mine as materialized (
    select i.id from unnest($1::bigint[], $2::bigint[]) as claim(id, epoch)
    join gen_durable.instances i on i.id = claim.id and i.claim_epoch = claim.epoch + 1
    where i.status = 'cancelled' and i.locked_by is not null
),
free as materialized (
    select i.id from gen_durable.instances i
    where i.id = any (array(select mine.id from mine)) and i.status = 'cancelled' and i.locked_by is not null
    order by i.id
    for no key update skip locked
),
released as materialized (
    select gen_durable._release(array(select free.id from free)) as ids
)
select array(select mine.id from mine where mine.id <> all (released.ids)) as locked, released.ids as released from released
