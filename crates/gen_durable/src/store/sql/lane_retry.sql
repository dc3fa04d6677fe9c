-- called by: store::lane::retry     index: instances_blocked, instances_pkey, instances_key
-- locks: the head of the lane, if the head failed and blocks the lane; waits for a transaction that
-- has inserted the key of the head and not committed yet
-- Makes the failed head of a blocked lane runnable again at its step, as `retry.sql` does; the head
-- keeps its lane position. The statement locks the head's row before it draws an arrival number, so
-- that the transaction has an id: see `_place_new`.
with held as materialized (
    select i.id from gen_durable.instances i
    where i.tenant = $1 and i.lane_key = $2 and i.in_lane and i.status = 'failed'
    for no key update
)
update gen_durable.instances i
set status = 'runnable',
    partition_waiting = i.partition_key is not null,
    arrival_no = case when i.partition_key is not null then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
    step_seq = i.step_seq + 1,
    claim_epoch = i.claim_epoch + 1,
    attempt = 0, failures = 0,
    crash_count = 0,
    eligible_at = gen_durable.clock(),
    result = null, last_error = null, settled_at = null,
    deadline_at = null, deadline_step = null, deadline_data = null,
    parent_generation = null,
    updated_at = gen_durable.clock()
from held
where i.id = held.id
returning i.id, i.queue, i.priority, i.eligible_at
