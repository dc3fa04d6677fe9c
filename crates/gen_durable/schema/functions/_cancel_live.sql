-- Settles live instances as cancelled. The caller holds the locks of their rows. Returns the ids of
-- the instances that it settled, or null.
--   called by: cancel, _cancel_below      index: instances_pkey, lanes_pkey, instances_lane
--   locks: parents by id; then the lanes of heads that do not run
-- A running step (of an executing instance, or of the queued head of a lane that a worker runs)
-- loses its claim, and its result is dropped. The step still runs, so its lane and its partition
-- key stay taken: the row keeps its position, and `locked_by` names the worker, until that worker
-- reports that the step has ended or its lease expires (`_release`).
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
        -- An instance that was behind others when this transaction began may run by now, and its
        -- own row does not show it. In that case its predecessor has settled since: locking the
        -- predecessor fails with a serialization error (40001), and the caller may retry in another
        -- transaction.
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
    -- Instances with a lane or a partition key and a running step, with the worker; and heads of
    -- lanes that do not run. By id: see `_run_lane_successors`.
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
            -- Without a running step the instance leaves its lane and frees its partition key, and
            -- an arrival number makes `_place` promote the successor. A number that it already has
            -- stays: it may be the one by which `_place` reads the lane or partition key for others.
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
    -- Last: a transaction that holds the lock of a lane waits for no instance.
    if cardinality(heads) > 0 then
        perform gen_durable._clear_lane_workers(heads);
    end if;
    return ids;
end $$;
