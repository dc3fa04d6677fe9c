-- Claims instances as `_pick` does, if a limit is declared. Instances that may not begin get the
-- status `awaiting_limit`, and leave the index of the pickers.
--   called by: _pick
--   index: instances_pick, instances_suspects, instances_pkey, limit_backlog_ready, limit_backlog_pkey,
--   limit_locks_pkey, limit_holds_pkey; as _admit, _serve_group, _claim
--   locks: the candidates, FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id); rows of
--   limit_backlog, skipping locked rows; then rows of limit_locks by name, for at most 50 ms; as
--   _serve_group. No transaction that has locked a limit waits for another lock.
-- Counting claims is exact, because only a transaction with the lock of a limit adds a claim to the
-- limit, and reads the claims after it got the lock. Claims that end meanwhile make the count too
-- large, never too small. A row without an id tells the picker that it has to read the same range
-- again: the pick has read as many candidates as it may claim and has not claimed all of them.
create function gen_durable._pick_limited(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_known text[], p_worker uuid, p_lease_seconds float8, p_paused text[], p_takes_suspect boolean, p_freed text[]
) returns setof gen_durable.claimed
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    open_queues text[];
    open_room int[];
    -- The candidates from the index of the pickers, in its order.
    ids bigint[];
    groups text[];
    weights float8[];
    queues text[];
    suspect_id bigint;
    suspect_group text;
    suspect_weight float8;
    backlog_groups text[];
    backlog_queues text[];
    names text[];
    is_locked boolean := true;
    served int[];
    place int;
    quantum int;
    chosen bigint[];
    admitted bigint[] := '{}';
    kept bigint[];
    again gen_durable.claimed;
begin
    select array_agg(w.queue), array_agg(w.free), array_agg(0) into open_queues, open_room, served
    from unnest(p_queues, p_room) as w(queue, free)
    where w.queue <> all (coalesce(p_paused, '{}'));
    if open_queues is null then
        return;
    end if;
    select coalesce(array_agg(c.id order by c.nth), '{}'), array_agg(c.limit_group order by c.nth),
        array_agg(coalesce(c.limit_weight, 1)::float8 order by c.nth), array_agg(c.queue order by c.nth)
    into ids, groups, weights, queues
    from (
        select chosen.*, row_number() over () as nth
        from unnest(open_queues, open_room) as wanted(queue, free)
        cross join lateral (
            select found.*, wanted.queue
            from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id)
                as range(queue, priority, since, since_id)
            cross join lateral (
                select i.id, i.limit_group, i.limit_weight
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
    ) c;
    if p_takes_suspect then
        select i.id, i.limit_group, coalesce(i.limit_weight, 1)::float8 into suspect_id, suspect_group, suspect_weight
        from unnest(open_queues) as wanted(queue)
        cross join lateral (
            select i.id, i.limit_group, i.limit_weight
            from gen_durable.instances i
            where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting
              and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.eligible_at, i.id
            limit 1
            for no key update skip locked
        ) i
        limit 1;
    end if;
    -- The groups that wait: those that are due, and those that wait for the end of a claim in a limit
    -- in which this worker has ended one. At most 32 in a pick.
    select array_agg(b.limit_group order by b.ready_at), array_agg(b.queue order by b.ready_at) into backlog_groups, backlog_queues
    from (
        select found.*
        from unnest(open_queues) as wanted(queue)
        cross join lateral (
            select b.limit_group, b.queue, b.ready_at
            from gen_durable.limit_backlog b
            where b.queue = wanted.queue and b.ready_at <= gen_durable.clock() + interval '200 ms'
              and (b.ready_at <= gen_durable.clock() or b.held and b.names && p_freed)
            order by b.queue, b.ready_at
            limit 32
            for no key update skip locked
        ) found
        order by found.ready_at
        limit 32
    ) b;
    select array_agg(n.name order by n.name) into names
    from (select p.name from (select unnest(groups) union select unnest(backlog_groups) union select suspect_group) g(limit_group)
          cross join lateral gen_durable._limit_pairs(g.limit_group) p
          where g.limit_group is not null
          group by p.name) n;
    if names is not null then
        perform set_config('lock_timeout', '50ms', true);
        begin
            perform from gen_durable.limit_locks l where l.name = any (names) order by l.name for no key update;
        exception when lock_not_available then
            -- This pick claims only instances without limits.
            is_locked := false;
        end;
        if is_locked and exists (select from gen_durable.limit_holds h where h.name = any (names)) then
            delete from gen_durable.limit_holds h
            where h.name = any (names) and not exists (
                select from gen_durable.instances i
                where i.id = h.instance_id and i.claim_epoch in (h.claim_epoch, h.claim_epoch + (i.status = 'cancelled')::int)
                  and (i.status = 'executing' or i.locked_by is not null));
        end if;
    end if;
    if is_locked and backlog_groups is not null then
        for place in 1..cardinality(backlog_groups) loop
            -- The groups share the room of their queue. If other instances are due in the queue, half
            -- of the room is left for them.
            select greatest(1, w.free / (case when w.queue = any (queues) then 2 else 1 end) - w.served) into quantum
            from unnest(open_queues, open_room, served) as w(queue, free, served)
            where w.queue = backlog_queues[place] and w.served < w.free;
            continue when quantum is null;
            quantum := least(quantum, greatest(1, quantum / (cardinality(backlog_groups) - place + 1)));
            chosen := gen_durable._serve_group(backlog_groups[place], backlog_queues[place], quantum, p_known);
            continue when chosen = '{}';
            return query select * from gen_durable._claim(chosen, true, p_worker, p_lease_seconds);
            served[array_position(open_queues, backlog_queues[place])] :=
                served[array_position(open_queues, backlog_queues[place])] + cardinality(chosen);
        end loop;
    end if;
    -- Leaves the candidates beyond the room that is left.
    select array_agg(c.id order by c.nth), array_agg(c.limit_group order by c.nth), array_agg(c.weight order by c.nth)
    into kept, groups, weights
    from (select c.id, c.limit_group, c.weight, c.nth, w.free - w.served as room_left, row_number() over (partition by c.queue order by c.nth) as place
          from unnest(ids, groups, weights, queues) with ordinality as c(id, limit_group, weight, queue, nth)
          join unnest(open_queues, open_room, served) as w(queue, free, served) on w.queue = c.queue) c
    where c.place <= c.room_left;
    if kept is not null then
        if is_locked then
            select gen_durable._admit(array_agg(c.id), array_agg(c.limit_group), array_agg(c.weight), true) into admitted
            from unnest(kept, groups, weights) as c(id, limit_group, weight) where c.limit_group is not null
            having count(*) > 0;
            admitted := coalesce(admitted, '{}');
        end if;
        chosen := array(select c.id from unnest(kept, groups) as c(id, limit_group) where c.limit_group is null or c.id = any (admitted));
        return query select * from gen_durable._claim(chosen, false, p_worker, p_lease_seconds);
        if is_locked and cardinality(chosen) < cardinality(kept) then
            perform gen_durable._park(array(select unnest(kept) except select unnest(chosen)));
        end if;
    end if;
    if suspect_id is not null and (suspect_group is null or is_locked and cardinality(
           gen_durable._admit(array[suspect_id], array[suspect_group], array[suspect_weight], false)) > 0) then
        return query select * from gen_durable._claim(array[suspect_id], false, p_worker, p_lease_seconds);
    end if;
    if cardinality(chosen) < cardinality(ids) and (not is_locked or exists (
           select from unnest(open_queues, open_room) as w(queue, free)
           where w.free <= (select count(*) from unnest(queues) as c(queue) where c.queue = w.queue))) then
        again.waited := true;
        return next again;
    end if;
end $$;
