-- called by: store::lane::skip     index: instances_blocked, instances_pkey
-- locks: the head of the lane, if the head failed and blocks the lane
-- Removes the failed head of a blocked lane from the lane. The head stays failed, and the next
-- placement promotes its successor. The statement locks the head's row before it draws the arrival
-- number, so that the transaction has an id: see `_place_new`.
with held as materialized (
    select i.id from gen_durable.instances i
    where i.tenant = $1 and i.lane_key = $2 and i.in_lane and i.status = 'failed'
    for no key update
)
update gen_durable.instances i
set in_lane = false, arrival_no = nextval('gen_durable.arrival_numbers'), updated_at = gen_durable.clock()
from held
where i.id = held.id
returning i.id, i.queue, i.priority, i.eligible_at
