-- Settles live instances as cancelled. The caller has locked their rows. Returns the ids of the
-- instances that this call settled, or null.
--   called by: cancel, _cancel_below      index: instances_pkey, lanes_pkey, instances_lane
--   locks: parents by id; then the lanes of heads that do not run
-- If a worker runs a step of the instance (it is executing, or the queued head of a lane that a
-- worker runs), the worker loses its claim, and the fence rejects the result of the step. The step
-- still runs, so the instance keeps its lane and its partition key: the row keeps its lane
-- position, and `locked_by` names the worker, until that worker reports that the step has ended or
-- the worker's lease expires (`_release`).
create function gen_durable._cancel_live(p_ids bigint[], p_reason text) returns bigint[]
language plpgsql
as $$
-- planner: pinned
declare
    ids bigint[];
    running bigint[];
    workers uuid[];
    heads bigint[];
begin
    if not gen_durable._is_read_committed() then
        -- A queued instance that had a predecessor when this transaction began may run by now, and
        -- its own row does not show that. In that case its predecessor has settled since: locking
        -- the predecessor fails with a serialization error (40001), and the caller may retry in
        -- another transaction.
        perform from gen_durable.instances p
        where p.id = any (array(
            select before.id from gen_durable.instances i
            cross join lateral (
                select p.id from gen_durable.instances p
                where p.lane_hash = i.lane_hash and p.in_lane and p.lane_position < i.lane_position
                  and p.tenant = i.tenant and p.lane_key = i.lane_key
                order by p.lane_hash desc, p.lane_position desc
                limit 1
            ) before
            where i.id = any (p_ids) and i.status = 'queued' and coalesce(i.in_lane, false)))
        order by p.id desc
        for no key update;
    end if;
    -- Finds the instances with a running step and a lane or a partition key, with the worker of
    -- each, and the heads of lanes without a running step. The condition of this statement is on
    -- ids because of the planner; see `_run_lane_successors`.
    select array_agg(h.id) filter (where h.worker is not null), array_agg(h.worker) filter (where h.worker is not null),
        array_agg(h.id) filter (where h.worker is null and h.in_lane and h.status <> 'queued')
    into running, workers, heads
    from (select i.id, i.status, i.in_lane,
              case when i.status = 'executing' and (i.in_lane or i.partition_key is not null) then i.locked_by
                   when i.status = 'queued' and i.in_lane then gen_durable._lane_worker(i.id) end as worker
          from gen_durable.instances i where i.id = any (p_ids) and i.settled_at is null) h;
    with ended as (
        update gen_durable.instances i
        set status = 'cancelled', claim_epoch = i.claim_epoch + 1,
            locked_by = workers[array_position(running, i.id)], lease_expires_at = null,
            awaits = null, deadline_at = null, deadline_step = null, deadline_data = null,
            last_error = coalesce(p_reason, 'cancelled'), settled_at = gen_durable.clock(), updated_at = gen_durable.clock(),
            -- An instance without a running step leaves its lane and frees its partition key, and
            -- draws an arrival number, so that `_place` promotes its successor. Any other instance
            -- keeps an arrival number that it has: `_place` may need that number to read the lane
            -- or partition key for other instances.
            partition_waiting = false, in_lane = i.in_lane and array_position(running, i.id) is not null,
            arrival_no = case when i.id = any (heads)
                                or i.partition_key is not null and not i.partition_waiting and i.status = 'runnable'
                           then nextval('gen_durable.arrival_numbers') else i.arrival_no end
        where i.id = any (p_ids) and i.settled_at is null
        returning i.id
    )
    select array_agg(ended.id) into ids from ended;
    if ids is null then
        return null;
    end if;
    perform gen_durable._record_history(ids, 'cancel');
    perform gen_durable._notify_parents(ids);
    -- Locks the lanes last: a transaction that holds the lock of a lane must not wait for the lock
    -- of an instance.
    if cardinality(heads) > 0 then
        perform gen_durable._clear_lane_workers(heads);
    end if;
    return ids;
end $$;
