-- called by: store::operate::retry     index: instances_pkey, instances_key
-- locks: the instance's row; waits for a transaction that has inserted the key of the instance and
-- not committed yet
-- Makes a failed, cancelled or stuck instance runnable again. A retry of the current step keeps
-- step_entry_seq, so the idempotency key stays; with $2 the instance enters another step. A settled
-- child was already counted at its parent's join and does not count again; a stuck child was not
-- counted, and still counts. An instance that has left its lane is appended to the lane; an
-- instance that blocks its lane runs at its position. The statement locks the row before it draws
-- an arrival number, so that the transaction has an id: see `_place_new`.
with stood as materialized (
    select i.id, i.step from gen_durable.instances i
    where i.id = $1 and i.status in ('failed', 'cancelled', 'stuck')
      -- Leaves out a cancelled instance while its step still runs: after a retry, two steps of the
      -- instance would run at the same time.
      and i.locked_by is null
    for no key update
),
again as (
    update gen_durable.instances i
    set status = case when i.lane_key is null or i.in_lane then 'runnable' else 'queued' end::gen_durable.durable_status,
        partition_waiting = i.partition_key is not null and (i.lane_key is null or i.in_lane),
        arrival_no = case when i.partition_key is not null or (i.lane_key is not null and not i.in_lane)
                       then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
        step = coalesce($2, i.step),
        data = case when $2 is null then i.data else $3::text::jsonb end,
        awaits = case when $2 is null then i.awaits end,
        step_entry_seq = case when $2 is null then i.step_entry_seq else i.step_seq + 1 end,
        step_seq = i.step_seq + 1,
        claim_epoch = i.claim_epoch + 1,
        attempt = 0, failures = 0,
        crash_count = 0,
        eligible_at = gen_durable.clock(),
        result = null, last_error = null, settled_at = null,
        deadline_at = null, deadline_step = null, deadline_data = null,
        parent_generation = case when i.settled_at is null then i.parent_generation end,
        updated_at = gen_durable.clock()
    from stood
    where i.id = stood.id
    returning i.id, i.step_seq, i.claim_epoch, i.status, i.step, i.queue, i.priority, i.eligible_at
),
recorded as (
    insert into gen_durable.history
        (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
    select again.id, again.step_seq, again.claim_epoch, gen_durable.clock(), 0, again.status, 'operator_retry', stood.step, again.step
    from again cross join stood
)
select queue, priority, eligible_at from again
