-- Settles live instances as cancelled. The caller has locked their rows. Returns the ids of the
-- instances that this call settled, or null.
--   called by: cancel, _cancel_below      index: instances_pkey      locks: parents by id
-- If a worker runs a step of the instance, the worker loses its claim, and the fence rejects the
-- result of the step. The step still runs, so the instance keeps its lane, its partition key and
-- its limits: the row keeps its lane position, and `locked_by` names the worker, until that worker
-- reports that the step has ended or the worker's lease expires (`_release`).
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
    -- Finds the instances with a running step and a lane, a partition key or limits, with the
    -- worker of each, and the heads of lanes without a running step. The condition of this
    -- statement is on ids because of the planner; see `_claim_successors`.
    select array_agg(h.id) filter (where h.worker is not null), array_agg(h.worker) filter (where h.worker is not null),
        array_agg(h.id) filter (where h.worker is null and h.in_lane and h.status <> 'queued')
    into running, workers, heads
    from (select i.id, i.status, i.in_lane,
              case when i.status = 'executing' and (i.in_lane or i.partition_key is not null or i.limit_group is not null) then i.locked_by end as worker
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
                                or i.partition_key is not null and not i.partition_waiting and i.status in ('runnable', 'awaiting_limit')
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
    return ids;
end $$;
