-- Claims runnable instances for every queue in which the worker has room, in one statement, and
-- returns them. It does not claim an instance at a step that the worker's build does not know: a
-- worker that knows the step claims it.
--   called by: store::pick::claim
--   index: instances_pick, instances_pkey, signals_inbox; as its parts
--   locks: instances FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id): it waits for no
--   lock
-- The p_range arrays are ranges (queue, priority, from, from_id). This worker has already read
-- everything up to (from, from_id), so the scan begins there, and does not read dead index entries
-- of the instances that were claimed before. The last row has no id: it carries the time, the next
-- due time, the paused queues, the result of `_place_arrivals` and, with p_counts_fleet, the group
-- of the worker (see `_fleet`).
-- p_fair has the tenants of fair queues that the worker knows (see `_fair_candidates`), an object
-- with one entry per fair queue. The last row has the sum of `queues.fair_version` as `marks`.
-- p_freed has the limits, as groups (see `_limit_pairs`), of the claims that the worker has ended
-- since its last pick: instances that wait for these limits may begin.
create function gen_durable._pick(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_known text[], p_worker uuid, p_lease_seconds float8, p_suspects int,
    p_counts_fleet boolean default false, p_found_work boolean default false, p_freed text[] default '{}', p_fair text default null
) returns setof gen_durable.claimed
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    claimed bigint;
    has_suspect boolean;
    has_groups boolean;
    info gen_durable.claimed;
begin
    if not gen_durable._is_read_committed() then perform gen_durable._require_read_committed(); end if;
    info.predecessor_id := gen_durable._place_arrivals();
    -- Most picks of a fleet find nothing. One probe per range finds the first entry after the
    -- watermark, so that such a pick starts none of the statements that claim instances.
    select (select min(first.eligible_at)
            from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id) as range(queue, priority, since, since_id)
            cross join lateral (
                select i.eligible_at
                from gen_durable.instances i
                where i.queue = range.queue and i.priority = range.priority
                  and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                  and (i.eligible_at, i.id) > (range.since, range.since_id)
                  and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
                order by i.eligible_at, i.id
                limit 1
            ) first),
           p_suspects > 0 and exists (select from gen_durable.instances i
            where i.queue = any (p_queues) and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting),
           q.paused, array[q.fair_version], p_fair is not null or exists (select from gen_durable.limit_locks)
    into info.next_due, has_suspect, info.paused, info.marks, has_groups
    from (select array_agg(q.name) filter (where q.paused_at is not null) as paused, coalesce(sum(q.fair_version), 0)::bigint as fair_version
          from gen_durable.queues q where q.name = any (p_queues)) q;
    if has_groups then
        return query select l.* from gen_durable._pick_limited(p_queues, p_room, p_range_queues, p_range_priorities, p_range_from,
            p_range_from_id, p_known, p_worker, p_lease_seconds, info.paused, info.next_due, has_suspect, p_freed, p_fair::jsonb) l;
        info.next_due := least(gen_durable._next_due(p_range_queues, p_range_priorities), gen_durable._limits_due(p_queues, info.paused));
    elsif info.next_due <= gen_durable.clock() then
        return query
        with candidate as materialized (
            select chosen.id
            from unnest(p_queues, p_room) as wanted(queue, free)
            cross join lateral (
                select found.id
                from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id)
                    as range(queue, priority, since, since_id)
                cross join lateral (
                    select i.id
                    from gen_durable.instances i
                    where i.queue = range.queue and i.priority = range.priority
                      and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                      and (i.eligible_at, i.id) > (range.since, range.since_id)
                      and i.eligible_at <= gen_durable.clock()
                      and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                    order by i.eligible_at, i.id
                    limit wanted.free
                    for no key update skip locked
                ) found
                where range.queue = wanted.queue
                limit wanted.free
            ) chosen
            where wanted.queue <> all (coalesce(info.paused, '{}'))
        )
        update gen_durable.instances i
        set status = 'executing', locked_by = p_worker,
            lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
            claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
        from candidate
        where i.id = candidate.id
        returning i.id, i.machine, i.machine_version, i.step, i.data::text, i.state::text, i.attempt,
            i.claim_epoch, i.step_seq, i.step_entry_seq, i.queue, i.priority, i.eligible_at,
            i.tenant, i.traceparent, i.partition_key is not null or i.lane_key is not null, i.crash_count,
            null::timestamptz, null::text[], i.awaits,
            (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
             from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
            case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end,
            i.parent_id, null::bigint, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), null::int[], null::text, false;
        get diagnostics claimed = row_count;
        -- If the pick claimed as many instances as it asked for, the next one may be due already.
        info.next_due := case when claimed < (select coalesce(sum(free), 0) from unnest(p_room) as free)
            then gen_durable._next_due(p_range_queues, p_range_priorities) end;
    end if;
    if has_suspect and not has_groups then
        return query select * from gen_durable._pick_suspect(p_queues, p_known, p_worker, p_lease_seconds);
    end if;
    info.fleet := case when p_counts_fleet then gen_durable._fleet(p_worker, p_found_work) end;
    info.eligible_at := gen_durable.clock();
    info.keyed := false;
    return next info;
end $$;
