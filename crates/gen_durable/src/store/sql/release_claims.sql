-- called by: store::pick::release_claims     index: instances_pkey
-- locks: instances by id, in order, skipping rows that another transaction holds, so that one
-- locked row does not block the other rows
-- Releases claims of this worker: makes the claimed instances runnable without counting an attempt.
with held as materialized (
    select i.id
    from unnest($1::bigint[], $2::bigint[]) as claim(id, epoch)
    join gen_durable.instances i on i.id = claim.id and i.claim_epoch = claim.epoch
    order by i.id
    for no key update of i skip locked
)
update gen_durable.instances i
set status = 'runnable', claim_epoch = i.claim_epoch + 1, locked_by = null, lease_expires_at = null,
    eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
from held
where i.id = held.id and i.status = 'executing'
returning i.id
