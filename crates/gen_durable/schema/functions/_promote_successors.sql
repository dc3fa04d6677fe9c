-- Promotes the successors of instances that this transaction has just settled in a lane, or that
-- have ended a step under a partition key. p_worker may at once run the successors of the instances
-- in p_taking. The instances in p_begins are in a lane that p_worker does not run yet.
--   called by: _write_keyed_step_results, _write_step_results_with_effects, warm.sql
--   index: instances_lane, instances_pkey, lanes_pkey; as its parts
--   locks: the successors; then lanes in (tenant, key), and after that only rows that it skips if
--   they are locked. If the worker runs a successor at once, it waits for the lock of the
--   successor, as for every row of a batch, up to the lock timeout. Otherwise it skips a locked
--   successor, and `_place` promotes that successor later.
-- In a lane, a successor that runs at once is not claimed: it stays `queued`, and the lane's row
-- names the worker. So the row of a job in a lane is updated once, when the job ends, and the
-- lane's row once, for the first successor.
create function gen_durable._promote_successors(
    p_ids bigint[], p_taking bigint[], p_begins bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns setof gen_durable.claimed
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    emptied bigint[];
    raising bigint[];
    follows bigint[];
    successor_predecessors bigint[];
    others bigint[];
    other_predecessors bigint[];
    has_partitions boolean;
    partition_successors bigint[];
    partition_predecessors bigint[];
    promoted_queues text[];
    late bigint[];
    late_predecessors bigint[];
    passed_over bigint[];
    claimed bigint := 0;
begin
    -- Finds the instances that have left a lane, and the next instance in each lane. Placements
    -- only append to a lane, so this read needs no lock of the lane. If a successor is cancelled at
    -- this moment, `_run_lane_successors` does not return it.
    select array_agg(i.id) filter (where lane.is_free and n.id is null),
        -- One settled instance in fifty raises the floor of its lane.
        array_agg(i.id) filter (where lane.is_free and gen_durable._one_in(50, i.lane_position)),
        array_agg(n.id) filter (where n.follows), array_agg(i.id) filter (where n.follows),
        array_agg(n.id) filter (where n.status = 'queued' and not n.follows),
        array_agg(i.id) filter (where n.status = 'queued' and not n.follows),
        bool_or(i.partition_key is not null and i.status <> 'executing')
    into emptied, raising, follows, successor_predecessors, others, other_predecessors, has_partitions
    from gen_durable.instances i
    cross join lateral (select i.lane_position is not null and not i.in_lane
                               and i.status in ('done', 'failed', 'cancelled') as is_free) lane
    left join lateral (
        select e.id, e.status,
            -- At most one successor per ended instance runs at once. If the instance frees a lane
            -- and a partition key together, the next pick claims both successors.
            e.status = 'queued' and i.id = any (p_taking) and i.partition_key is null and e.partition_key is null
            and e.queue = i.queue and e.eligible_at <= gen_durable.clock() and e.crash_count < 2
            and gen_durable._knows_step(p_known, e.machine, e.machine_version, e.step)
            and not exists (select from gen_durable.queues q where q.name = i.queue and q.paused_at is not null) as follows
        from gen_durable.instances e
        where lane.is_free and e.lane_hash = i.lane_hash and e.in_lane and e.lane_position > i.lane_position
          and e.tenant = i.tenant and e.lane_key = i.lane_key
        order by e.lane_hash, e.lane_position
        limit 1
    ) n on true
    where i.id = any (p_ids);

    if has_partitions then
        select s.ids, s.freed, s.queues into partition_successors, partition_predecessors, promoted_queues from gen_durable._partition_successors(p_ids) s;
    end if;
    if follows is not null then
        return query select * from gen_durable._run_lane_successors(follows, successor_predecessors);
        get diagnostics claimed = row_count;
        if claimed < cardinality(follows) then
            -- If a successor was cancelled since this commit read the lane, another instance is
            -- next in the lane. The ended instance then draws an arrival number, so that `_place`
            -- reads the lane again.
            passed_over := array(
                select n.freed from unnest(follows, successor_predecessors) as n(id, freed)
                where not exists (select from gen_durable.instances i where i.id = n.id and i.status = 'queued' and (i.in_lane or i.partition_waiting)));
        end if;
    end if;
    if partition_successors is not null and cardinality(p_taking) > 0 then
        return query select * from gen_durable._claim_partition_successors(
            partition_successors, partition_predecessors, promoted_queues, p_taking, p_worker, p_lease_seconds, p_known);
        get diagnostics claimed = row_count;
        if claimed = cardinality(partition_successors) then
            partition_successors := null;
            partition_predecessors := null;
        end if;
    end if;

    -- The following calls lock rows of `lanes`, so they run after all waits for locks of instances.
    if raising is not null then
        perform gen_durable._raise_lane_floors(raising);
    end if;
    if follows is not null and cardinality(p_begins) > 0 then
        perform gen_durable._run_lanes(array(select f from unnest(successor_predecessors) as f where f = any (p_begins)), p_worker);
    end if;
    if emptied is not null then
        select s.ids, s.freed into late, late_predecessors from gen_durable._late_successors(emptied) s;
    end if;
    others := others || late || partition_successors;
    other_predecessors := other_predecessors || late_predecessors || partition_predecessors;
    if others is not null then
        passed_over := passed_over || gen_durable._release_successors(others, other_predecessors, p_worker);
    end if;
    if cardinality(passed_over) > 0 then
        update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers') where i.id = any (passed_over);
        perform gen_durable._clear_lane_workers(passed_over);
    end if;
end $$;
