-- called by: store::lane::discard     index: instances_blocked, instances_pkey
-- locks: the head of the lane, if the head failed and blocks the lane
-- Cancels the failed head of a blocked lane. The head leaves its lane, and the next placement
-- promotes its successor. The commit that failed the head already notified the parent of the head.
-- The statement locks the head's row before it draws the arrival number, so that the transaction
-- has an id: see `_place_new`.
with held as materialized (
    select i.id from gen_durable.instances i
    where i.tenant = $1 and i.lane_key = $2 and i.in_lane and i.status = 'failed'
    for no key update
)
update gen_durable.instances i
set status = 'cancelled', in_lane = false, arrival_no = nextval('gen_durable.arrival_numbers'), claim_epoch = i.claim_epoch + 1,
    last_error = $3 || coalesce('; it had failed: ' || i.last_error, ''),
    settled_at = gen_durable.clock(), updated_at = gen_durable.clock()
from held
where i.id = held.id
returning i.id, i.queue, i.priority, i.eligible_at
