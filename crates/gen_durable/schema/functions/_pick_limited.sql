-- Claims instances as `_pick` does, if a limit is declared or a queue is fair. Instances that may
-- not begin get the status `awaiting_limit`, and leave the index of the pickers.
--   called by: _pick
--   index: as its parts
--   locks: the candidates, FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id); then rows
--   of limit_locks by name, for at most 50 ms; then rows of limit_backlog and instances that wait,
--   skipping locked rows. No transaction that has locked a limit waits for another lock.
-- Counting claims is exact, because only a transaction with the lock of a limit adds a claim to the
-- limit, and reads the claims after it got the lock. Claims that end meanwhile make the count too
-- large, never too small. A row without an id tells the picker that it has to read the same range
-- again: the pick has read as many candidates as it may claim and has not claimed all of them, it
-- has left candidates because groups took their room, or it did not get the lock of a limit.
-- Another row without an id has the reports of `_fair_candidates` as `data`.
create function gen_durable._pick_limited(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_known text[], p_worker uuid, p_lease_seconds float8, p_paused text[], p_next_due timestamptz, p_takes_suspect boolean, p_freed text[],
    p_fair jsonb
) returns setof gen_durable.claimed
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    open_queues text[] := array(select q from unnest(p_queues) q where q <> all (coalesce(p_paused, '{}')));
    room int[] := array(select w.free from unnest(p_queues, p_room) as w(queue, free) where w.queue = any (open_queues));
    candidates record;
    suspect record;
    backlog record;
    is_locked boolean;
    served int[] := array_fill(0, array[cardinality(open_queues)]);
    quantum int;
    chosen bigint[];
    claimed_count int;
    left_some boolean;
    report gen_durable.claimed;
    again gen_durable.claimed;
begin
    if open_queues = '{}' or not (p_takes_suspect or coalesce(p_next_due <= gen_durable.clock(), false)
           or coalesce(gen_durable._limits_due(open_queues, '{}') <= gen_durable.clock(), false)
           or jsonb_path_exists(p_fair, '$.*[*]')
           or p_freed <> '{}' and exists (select from gen_durable.limit_backlog b where b.held_on is not null)) then
        return;
    end if;
    select * into candidates
    from gen_durable._candidates(open_queues, room, p_range_queues, p_range_priorities, p_range_from, p_range_from_id, p_known, p_fair);
    select * into suspect from gen_durable._find_suspect(case when p_takes_suspect then open_queues else '{}' end, p_known);
    select array_agg(g.limit_group) as groups, array_agg(g.queue) as queues, max(g.retry_seconds) as retry
    into backlog from gen_durable._due_groups(open_queues, p_freed) g;
    is_locked := gen_durable._lock_limits(candidates.groups || backlog.groups || suspect.limit_group);
    for place in 1..case when is_locked then coalesce(cardinality(backlog.groups), 0) else 0 end loop
        -- The groups share the room of their queue. If other instances are due in the queue, half
        -- of the room is left for them; of a single place, every second pick on average.
        select case when w.queue = any (candidates.queues)
                    then (w.free + extract(microseconds from gen_durable.clock())::int % 2) / 2 else w.free end - w.served
        into quantum
        from unnest(open_queues, room, served) as w(queue, free, served)
        where w.queue = backlog.queues[place] and w.served < w.free;
        if coalesce(quantum, 0) <= 0 then
            -- Another worker, or the next pick, has to try this group. It is due, and no longer
            -- among the groups that the end of a claim finds: it must not hide those.
            update gen_durable.limit_backlog b set ready_at = least(b.ready_at, gen_durable.clock()), held_on = null
            where (b.limit_group, b.queue) in (
                select w.limit_group, w.queue from gen_durable.limit_backlog w
                where w.limit_group = backlog.groups[place] and w.queue = backlog.queues[place]
                  and (w.ready_at > gen_durable.clock() or w.held_on is not null)
                for no key update skip locked);
            continue;
        end if;
        quantum := least(quantum, greatest(1, quantum / (cardinality(backlog.groups) - place + 1)));
        chosen := gen_durable._serve_group(backlog.groups[place], backlog.queues[place], quantum, p_known,
            make_interval(secs => backlog.retry + place * 1e-6));
        continue when chosen = '{}';
        return query select * from gen_durable._claim(chosen, true, p_worker, p_lease_seconds);
        served[array_position(open_queues, backlog.queues[place])] :=
            served[array_position(open_queues, backlog.queues[place])] + cardinality(chosen);
    end loop;
    -- Leaves the candidates beyond the room that is left.
    select array_agg(c.id order by c.nth) as ids, array_agg(c.limit_group order by c.nth) as groups, array_agg(c.weight order by c.nth) as weights
    into backlog
    from (select c.*, w.free - w.served as room_left, row_number() over (partition by c.queue order by c.nth) as place
          from unnest(candidates.ids, candidates.groups, candidates.weights, candidates.queues) with ordinality as c(id, limit_group, weight, queue, nth)
          join unnest(open_queues, room, served) as w(queue, free, served) on w.queue = c.queue) c
    where c.place <= c.room_left;
    claimed_count := 0;
    left_some := cardinality(candidates.ids) > coalesce(cardinality(backlog.ids), 0);
    if backlog.ids is not null then
        chosen := gen_durable._choose_candidates(backlog.ids, backlog.groups, backlog.weights, is_locked);
        claimed_count := cardinality(chosen);
        return query select * from gen_durable._claim(chosen, false, p_worker, p_lease_seconds);
    end if;
    if suspect.id is not null and (suspect.limit_group is null or is_locked and cardinality(
           gen_durable._admit(array[suspect.id], array[suspect.limit_group], array[suspect.weight], false)) > 0) then
        return query select * from gen_durable._claim(array[suspect.id], false, p_worker, p_lease_seconds);
    elsif suspect.id is not null then
        -- The next pick tries the suspects behind this one.
        update gen_durable.instances i set eligible_at = gen_durable.clock() + interval '1 second' where i.id = suspect.id;
    end if;
    if candidates.report is not null then
        report.data := candidates.report;
        return next report;
    end if;
    if not is_locked or left_some or claimed_count < cardinality(candidates.ids) and exists (
           select from unnest(open_queues, room) as w(queue, free)
           where w.free <= (select count(*) from unnest(candidates.queues) as c(queue) where c.queue = w.queue)) then
        again.waited := true;
        again.keyed := not is_locked;
        return next again;
    end if;
end $$;
