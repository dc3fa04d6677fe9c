-- called by: store::lease::claim_led     index: instances_pkey
-- locks: instances by id, in order, skipping what somebody holds: its end is about to be committed
-- What has run for a while in a lane that this worker leads is claimed as everything else is, so that it can be seen to run. The claim
-- that its worker knows stays good.
with lasting as materialized (
    select i.id
    from unnest($1::bigint[], $2::bigint[]) as claim(id, epoch)
    join gen_durable.instances i on i.id = claim.id and i.claim_epoch = claim.epoch
    where i.status = 'queued'
    order by i.id
    for no key update of i skip locked
)
update gen_durable.instances i
set status = 'executing', locked_by = $3::text::uuid,
    lease_expires_at = statement_timestamp() + make_interval(secs => $4), updated_at = gen_durable.clock()
from lasting
where i.id = lasting.id
returning i.id
