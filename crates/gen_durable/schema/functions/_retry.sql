-- Makes failed, cancelled and stuck instances runnable again, from the current step, or from p_step
-- with p_data.
--   called by: store::operate::retry, _apply_bulk_page
--   index: instances_pkey, instances_key
--   locks: the instances by id; waits for a transaction that has inserted the key of an instance
--   and not committed yet
-- A retry of the current step keeps step_entry_seq, so the idempotency key stays; with p_step the
-- instance enters another step. A settled child was already counted at its parent's join and does
-- not count again; a stuck child was not counted, and still counts. An instance that has left its
-- lane is appended to the lane; an instance that blocks its lane runs at its position. The
-- statement locks the rows before it draws arrival numbers, so that the transaction has an id: see
-- `_place_new`. It draws them in the order of the ids: older instances come first in a lane.
create function gen_durable._retry(p_ids bigint[], p_step text, p_data text)
returns table (id bigint, queue text, priority smallint, eligible_at timestamptz)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
begin
    return query
    with held as materialized (
        select i.id, i.step, i.partition_key is not null or (i.lane_key is not null and not i.in_lane) as arrives
        from gen_durable.instances i
        where i.id = any (p_ids) and i.status in ('failed', 'cancelled', 'stuck')
          -- Leaves out a cancelled instance while its step still runs: after a retry, two steps of
          -- the instance would run at the same time.
          and i.locked_by is null
        order by i.id
        for no key update
    ),
    numbered as materialized (
        select held.id, held.step, case when held.arrives then nextval('gen_durable.arrival_numbers') end as arrival_no from held
    ),
    again as (
        update gen_durable.instances i
        set status = case when i.lane_key is null or i.in_lane then 'runnable' else 'queued' end::gen_durable.durable_status,
            partition_waiting = i.partition_key is not null and (i.lane_key is null or i.in_lane),
            arrival_no = coalesce(numbered.arrival_no, i.arrival_no),
            step = coalesce(p_step, i.step),
            data = case when p_step is null then i.data else p_data::jsonb end,
            awaits = case when p_step is null then i.awaits end,
            -- The worker that claims the instance computes the limits of another step.
            limit_group = case when p_step is null then i.limit_group end,
            limit_weight = case when p_step is null then i.limit_weight end,
            step_entry_seq = case when p_step is null then i.step_entry_seq else i.step_seq + 1 end,
            step_seq = i.step_seq + 1,
            claim_epoch = i.claim_epoch + 1,
            attempt = 0, failures = 0,
            crash_count = 0,
            eligible_at = gen_durable.clock(),
            result = null, last_error = null, settled_at = null,
            deadline_at = null, deadline_step = null, deadline_data = null,
            parent_generation = case when i.settled_at is null then i.parent_generation end,
            updated_at = gen_durable.clock()
        from numbered
        where i.id = numbered.id
        returning i.id, i.step_seq, i.claim_epoch, i.status, i.step, i.queue, i.priority, i.eligible_at
    ),
    recorded as (
        insert into gen_durable.history
            (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
        select again.id, again.step_seq, again.claim_epoch, gen_durable.clock(), 0, again.status, 'operator_retry', numbered.step, again.step
        from again join numbered on numbered.id = again.id
    )
    select again.id, again.queue, again.priority, again.eligible_at from again;
end $$;
