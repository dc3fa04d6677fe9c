-- Promotes the successors of instances that this transaction has just settled in a lane, or that
-- have ended a step under a partition key. p_worker claims the successors of the instances in
-- p_run_successors_of, if it may run them at once. Any picker can claim the others.
--   called by: _write_keyed_step_results, _write_step_results_with_effects, warm.sql
--   index: instances_lane, instances_pkey, lanes_pkey; as its parts
--   locks: the successors; then lanes in (tenant, key), and after that only rows that it skips if
--   they are locked. If the worker claims a successor, it waits for the lock of the successor, as
--   for every row of a batch, up to the lock timeout. Otherwise it skips a locked successor, and
--   `_place` promotes that successor later.
create function gen_durable._promote_successors(
    p_ids bigint[], p_run_successors_of bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns setof gen_durable.claimed
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    emptied bigint[];
    settled bigint[];
    settled_position bigint;
    has_partitions boolean;
    -- The successors, the ended instance of each, and the queue in which this worker may run it.
    ids bigint[];
    freed bigint[];
    queues text[];
    in_partitions record;
    late record;
    claimed bigint := 0;
    passed_over bigint[];
begin
    -- Finds the instances that have left a lane, and the next instance in each lane. Placements
    -- only append to a lane, so this read needs no lock of the lane. If a successor is cancelled at
    -- this moment, no statement below changes it.
    select array_agg(i.id) filter (where lane.is_free and n.id is null),
        array_agg(i.id) filter (where lane.is_free), max(i.lane_position) filter (where lane.is_free),
        array_agg(n.id) filter (where n.status = 'queued'), array_agg(i.id) filter (where n.status = 'queued'),
        array_agg(n.queue) filter (where n.status = 'queued'),
        bool_or(i.partition_key is not null and i.status <> 'executing')
    into emptied, settled, settled_position, ids, freed, queues, has_partitions
    from gen_durable.instances i
    cross join lateral (select i.lane_position is not null and not i.in_lane
                               and i.status in ('done', 'failed', 'cancelled') as is_free) lane
    left join lateral (
        select e.id, e.status,
            -- At most one successor per ended instance runs at once. If the instance frees a lane
            -- and a partition key together, the next pick claims both successors.
            case when i.partition_key is null and e.partition_key is null then i.queue end as queue
        from gen_durable.instances e
        where lane.is_free and e.lane_hash = i.lane_hash and e.in_lane and e.lane_position > i.lane_position
          and e.tenant = i.tenant and e.lane_key = i.lane_key
        order by e.lane_hash, e.lane_position
        limit 1
    ) n on true
    where i.id = any (p_ids);

    if has_partitions then
        select s.ids, s.freed, s.queues into in_partitions from gen_durable._partition_successors(p_ids) s;
        ids := ids || in_partitions.ids;
        freed := freed || in_partitions.freed;
        queues := queues || in_partitions.queues;
    end if;
    if ids is not null and cardinality(p_run_successors_of) > 0 then
        return query select * from gen_durable._claim_successors(
            ids, freed, queues, p_run_successors_of, p_worker, p_lease_seconds, p_known);
        get diagnostics claimed = row_count;
    end if;

    -- The following calls lock rows of `lanes`, so they run after all waits for locks of instances.
    if gen_durable._one_in(50, settled_position) then
        -- One commit in fifty raises the floors of its lanes.
        perform gen_durable._raise_lane_floors(settled);
    end if;
    if claimed = cardinality(ids) then
        ids := null;
        freed := null;
    end if;
    if emptied is not null then
        select s.ids, s.freed into late from gen_durable._late_successors(emptied) s;
        ids := ids || late.ids;
        freed := freed || late.freed;
    end if;
    if ids is not null then
        -- A successor that was cancelled or locked since this commit read the lane or partition is
        -- passed over. Its predecessor draws an arrival number, so that `_place` reads the lane or
        -- partition again.
        passed_over := gen_durable._release_successors(ids, freed, p_worker);
        if cardinality(passed_over) > 0 then
            update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers') where i.id = any (passed_over);
        end if;
    end if;
end $$;
