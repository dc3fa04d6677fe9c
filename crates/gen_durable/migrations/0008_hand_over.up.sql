-- 0008: the commit that frees a lane or a partition key lets the next go on; and cancelling, which frees it from outside.

-- Instances of this transaction's have just left a lane, or made way under a partition key: who is next, goes on. What is in
-- p_taking may be followed at once, by p_worker; what is in p_begins as well stood in a lane that this worker does not lead yet.
--   called by: settle_keyed, conclude      index: instances_lane, instances_waiting, instances_pkey, lanes_pkey, turns_pkey
--   locks: who is next; then lanes, in order, and after that nothing that it would have to wait for. Whoever takes waits for who is
--   next, as for every row of a batch, for at most the lock timeout. Where nobody takes, what somebody holds is skipped: `place`
--   sees to that one later.
-- In a lane, who follows at once is not claimed: it stays `queued`, and the lane's row says who leads the lane. So a job in a lane is
-- written once, by its end, and a lane's row once, by the first that follows.
create function gen_durable.hand_over(
    p_ids bigint[], p_taking bigint[], p_begins bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns table (
    id bigint, fsm text, fsm_version int, step text, data text, state text, attempt int,
    claim_epoch bigint, step_seq bigint, visit bigint, queue text, priority smallint, eligible_at timestamptz,
    tenant text, traceparent text, keyed boolean, crash_count smallint, next_due timestamptz, paused text[],
    awaits text[], inbox text, children text, parent_id bigint, freed_by bigint, marks bigint[], failures int, token bigint, led boolean
)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    emptied bigint[];
    follows bigint[];
    follows_freed bigint[];
    others bigint[];
    others_freed bigint[];
    has_lanes boolean;
    has_partitions boolean;
    turns bigint[];
    turns_freed bigint[];
    turns_queues text[];
    late bigint[];
    late_freed bigint[];
    keyed_ids bigint[];
    free_ids bigint[];
    begun bigint[];
    passed_over bigint[];
    claimed bigint := 0;
begin
    -- Who leaves a lane, and who is next in it. One that is there stays there, whoever comes after it, so this needs no lock of the
    -- lane; and one that goes just now does not follow below.
    select array_agg(i.id) filter (where lane.is_free and n.id is null),
        array_agg(n.id) filter (where n.follows), array_agg(i.id) filter (where n.follows),
        array_agg(n.id) filter (where n.status = 'queued' and not n.follows),
        array_agg(i.id) filter (where n.status = 'queued' and not n.follows),
        bool_or(lane.is_free), bool_or(i.partition_key is not null and i.status <> 'executing')
    into emptied, follows, follows_freed, others, others_freed, has_lanes, has_partitions
    from gen_durable.instances i
    cross join lateral (select i.lane_position is not null and not i.in_lane
                               and i.status in ('done', 'failed', 'cancelled') as is_free) lane
    left join lateral (
        select e.id, e.status,
            -- One in the stead of one: where a lane and a key are freed at once, both are left to the pickers.
            e.status = 'queued' and i.id = any (p_taking) and i.partition_key is null and e.partition_key is null
            and e.queue = i.queue and e.eligible_at <= gen_durable.clock() and e.crash_count < 2
            and gen_durable._knows_step(p_known, e.fsm, e.fsm_version, e.step)
            and not exists (select from gen_durable.queues q where q.name = i.queue and q.paused_at is not null) as follows
        from gen_durable.instances e
        where lane.is_free and e.lane_hash = i.lane_hash and e.in_lane and e.lane_position > i.lane_position
          and e.tenant = i.tenant and e.lane_key = i.lane_key
        order by e.lane_hash, e.lane_position
        limit 1
    ) n on true
    where i.id = any (p_ids);
    -- Under a partition key, all who ended a step made way; some of them for themselves.
    if has_partitions then
        keyed_ids := array(select i.id from gen_durable.instances i
                           where i.id = any (p_ids) and i.partition_key is not null and i.status <> 'executing');
        with next_one as materialized (
            -- One in the stead of one, as in a lane: who stands in a lane as well is not followed at once.
            select i.id as freed, gen_durable.next_turn(i.tenant, i.partition_key) as id, case when i.lane_key is null then i.queue end as queue
            from gen_durable.instances i where i.id = any (keyed_ids)
        )
        select array_agg(n.id), array_agg(n.freed), array_agg(n.queue) into turns, turns_freed, turns_queues
        from next_one n
        where n.id is not null;
        if cardinality(keyed_ids) > coalesce(cardinality(turns), 0) then
            -- A key for which nobody waits any more is forgotten.
            delete from gen_durable.turns t using gen_durable.instances i
            where i.id = any (keyed_ids) and (turns_freed is null or i.id <> all (turns_freed))
              and t.tenant = i.tenant and t.key = i.partition_key;
        end if;
        if turns is not null and random() < 0.05 then
            -- Now and then, as for lanes: nothing waits before who is first in line.
            insert into gen_durable.turns as t (tenant, key, priority, at, id)
            select i.tenant, i.partition_key, first.priority, first.eligible_at, first.id
            from gen_durable.instances i
            left join gen_durable.turns f on f.tenant = i.tenant and f.key = i.partition_key
            cross join lateral (
                select w.priority, w.eligible_at, w.id from gen_durable.instances w
                where w.tenant = i.tenant and w.partition_key = i.partition_key and w.held_back
                  and (w.priority, w.eligible_at, w.id) >= (coalesce(f.priority, '-32768'::smallint), coalesce(f.at, '-infinity'), coalesce(f.id, 0))
                order by w.tenant, w.partition_key, w.priority, w.eligible_at, w.id
                limit 1) first
            where i.id = any (turns_freed)
            on conflict (tenant, key) do update set priority = excluded.priority, at = excluded.at, id = excluded.id;
        end if;
    end if;

    -- Who follows in its lane. Locked, so that a cancel and we see one another.
    if follows is not null then
        return query
        select i.id, i.fsm, i.fsm_version, i.step, i.data::text, i.state::text, i.attempt,
            i.claim_epoch, i.step_seq, i.visit, i.queue, i.priority, i.eligible_at,
            i.tenant, i.traceparent, true, i.crash_count, null::timestamptz, null::text[], i.awaits,
            (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
             from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
            case when i.join_generation > 0 then gen_durable.children_of(i.id, i.join_generation) end,
            i.parent_id, n.freed, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), true
        from unnest(follows, follows_freed) as n(id, freed)
        join gen_durable.instances i on i.id = n.id
        -- A plain `in_lane` would let a plan that was made while nobody stood in a lane walk through all lanes; who is queued is not held back.
        where i.status = 'queued' and (i.in_lane or i.held_back)
        for no key update of i;
        get diagnostics claimed = row_count;
        if claimed < cardinality(follows) then
            -- Somebody was quicker (a cancel, say): then who is next is another.
            passed_over := array(
                select n.freed from unnest(follows, follows_freed) as n(id, freed)
                where not exists (select from gen_durable.instances i where i.id = n.id and i.status = 'queued' and (i.in_lane or i.held_back)));
        end if;
    end if;
    -- Who follows under its key.
    if turns is not null and cardinality(p_taking) > 0 then
        return query
        update gen_durable.instances i
        set status = 'executing', locked_by = p_worker, held_back = false,
            lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
            claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
        from unnest(turns, turns_freed, turns_queues) as n(id, freed, queue)
        where i.id = n.id and n.freed = any (p_taking) and (i.held_back or i.status = 'queued' and i.in_lane) -- as above: not a plain `held_back`
          and i.queue = n.queue and i.eligible_at <= gen_durable.clock() and i.crash_count < 2
          and gen_durable._knows_step(p_known, i.fsm, i.fsm_version, i.step)
          and not exists (select from gen_durable.queues q where q.name = n.queue and q.paused_at is not null)
        returning i.id, i.fsm, i.fsm_version, i.step, i.data::text, i.state::text, i.attempt,
            i.claim_epoch, i.step_seq, i.visit, i.queue, i.priority, i.eligible_at,
            i.tenant, i.traceparent, true, i.crash_count, null::timestamptz, null::text[], i.awaits,
            (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
             from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
            case when i.join_generation > 0 then gen_durable.children_of(i.id, i.join_generation) end,
            i.parent_id, n.freed, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), false;
        get diagnostics claimed = row_count;
        if claimed = cardinality(turns) then
            turns := null;
            turns_freed := null;
        end if;
    end if;

    -- From here on lanes are locked.
    if has_lanes and random() < 0.02 then
        -- Now and then: where to begin to look, so that nobody wades through all that was here before. A lane that somebody holds
        -- waits for another time.
        with held as materialized (
            select l.tenant, l.key, i.lane_position
            from gen_durable.instances i
            join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
            where i.id = any (p_ids) and not i.in_lane and i.lane_position > l.floor
            for no key update of l skip locked
        )
        update gen_durable.lanes l set floor = h.lane_position
        from held h
        where l.tenant = h.tenant and l.key = h.key;
    end if;
    if follows is not null and cardinality(p_begins) > 0 then
        begun := array(select f from unnest(follows_freed) as f where f = any (p_begins));
        with led as materialized (
            select l.tenant, l.key from gen_durable.instances i
            join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
            where i.id = any (begun) and l.led_by is distinct from p_worker
            order by l.tenant, l.key
            for update of l
        )
        update gen_durable.lanes l set led_by = p_worker
        from led
        where l.tenant = led.tenant and l.key = led.key;
    end if;
    if emptied is not null then
        -- Nobody is next. The lock of the lane, and only then another look: `place` may be about to put somebody there.
        perform from gen_durable.instances i
        join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
        where i.id = any (emptied)
        order by l.tenant, l.key
        for update of l;
        perform gen_durable.unlead(emptied);
        select array_agg(n.id), array_agg(i.id) into late, late_freed
        from gen_durable.instances i
        cross join lateral (
            select e.id, e.status from gen_durable.instances e
            where e.lane_hash = i.lane_hash and e.in_lane and e.lane_position > i.lane_position
              and e.tenant = i.tenant and e.lane_key = i.lane_key
            order by e.lane_hash, e.lane_position
            limit 1
        ) n
        where i.id = any (emptied) and n.status = 'queued';
    end if;

    -- The rest is for the pickers.
    others := others || late || turns;
    others_freed := others_freed || late_freed || turns_freed;
    if others is not null then
        -- Whom somebody holds is not overtaken: the lane or key keeps a number, and is looked at again.
        free_ids := array(
            select i.id from gen_durable.instances i
            where i.id = any (others) and (i.held_back or (i.status = 'queued' and i.in_lane))
            order by i.id
            for no key update skip locked);
        -- One that comes to the head of its lane and has a partition key as well waits for its turn there.
        update gen_durable.instances i
        set status = 'runnable', claim_epoch = i.claim_epoch + (i.status = 'queued')::int,
            held_back = i.status = 'queued' and i.partition_key is not null,
            arrival = case when i.status = 'queued' and i.partition_key is not null
                           then nextval('gen_durable.arrivals') else i.arrival end,
            eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
        where i.id = any (free_ids);
        if cardinality(free_ids) < cardinality(others) then
            passed_over := passed_over || array(
                select n.freed from unnest(others, others_freed) as n(id, freed)
                where n.id <> all (free_ids) and not exists (
                    select from gen_durable.instances i where i.id = n.id and i.status = 'executing' and i.locked_by = p_worker));
        end if;
    end if;
    if cardinality(passed_over) > 0 then
        update gen_durable.instances i set arrival = nextval('gen_durable.arrivals') where i.id = any (passed_over);
        perform gen_durable.unlead(passed_over);
    end if;
end $$;

-- Write endings of instances that stand in a lane or under a partition key, and hand over what they free.
--   called by: store::settle      index: instances_pkey; as hand_over
--   locks: as settle, then as hand_over
-- Answers which were written (in `marks` of the first row), what those find that run ahead, and who follows in whose stead.
create function gen_durable.settle_keyed(
    p_ids bigint[], p_epochs bigint[], p_seqs bigint[], p_statuses text[], p_versions int[],
    p_steps text[], p_data text[], p_states text[], p_results text[], p_errors text[],
    p_rises int[], p_delays float8[], p_lock_timeout text,
    p_taking bigint[], p_begins bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns table (
    id bigint, fsm text, fsm_version int, step text, data text, state text, attempt int,
    claim_epoch bigint, step_seq bigint, visit bigint, queue text, priority smallint, eligible_at timestamptz,
    tenant text, traceparent text, keyed boolean, crash_count smallint, next_due timestamptz, paused text[],
    awaits text[], inbox text, children text, parent_id bigint, freed_by bigint, marks bigint[], failures int, token bigint, led boolean
)
language plpgsql
as $$
#variable_conflict use_column
declare
    written bigint[];
    inboxes text[];
    broods text[];
begin
    select array_agg(w.id), array_agg(w.inbox), array_agg(w.children) into written, inboxes, broods
    from gen_durable.settle(p_ids, p_epochs, p_seqs, p_statuses, p_versions, p_steps, p_data, p_states, p_results, p_errors,
        p_rises, p_delays, p_lock_timeout) w;
    if written is null then
        return;
    end if;
    -- One row for all that was written: a row each would be as much again to send as those who are claimed.
    return query
    select null::bigint, null, null::int, null, null, null, null::int, null::bigint, null::bigint, null::bigint, null,
        null::smallint, gen_durable.clock(), null, null, true, null::smallint, null::timestamptz, null::text[],
        null::text[], null, null, null::bigint, null::bigint, written, null::int, null::bigint, false;
    if cardinality(array_remove(inboxes, null)) > 0 or cardinality(array_remove(broods, null)) > 0 then
        return query
        select w.id, null, null::int, null, null, null, null::int, null::bigint, null::bigint, null::bigint, null,
            null::smallint, gen_durable.clock(), null, null, true, null::smallint, null::timestamptz, null::text[],
            null::text[], w.inbox, w.children, null::bigint, null::bigint, null::bigint[], null::int, null::bigint, false
        from unnest(written, inboxes, broods) as w(id, inbox, children)
        where w.inbox is not null or w.children is not null;
    end if;
    return query select h.* from gen_durable.hand_over(written, p_taking, p_begins, p_worker, p_lease_seconds, p_known) h;
end $$;

-- Settles live instances as cancelled. The caller holds the locks of their rows. Returns the ids of those that it settled, or null.
--   called by: cancel, _cancel_below      index: instances_pkey, lanes_pkey, instances_lane
--   locks: parents by id; then the lanes of heads that do not run, if those were led
-- A step that runs (executing, or the head of a led lane) has lost its claim: its result is dropped. But it runs on, so its lane and
-- its partition key stay taken: the row keeps its position, and `locked_by` names the worker, until that worker reports that the step
-- has ended or its lease is over (`_release`).
create function gen_durable._cancel_live(p_ids bigint[], p_reason text) returns bigint[]
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
declare
    ids bigint[];
    running bigint[];
    workers uuid[];
    heads bigint[];
begin
    if not gen_durable.looks_anew() then
        -- One that was behind others when this transaction began may run by now, and nothing of that is in its own row. But then who
        -- stood before it has gone: this is refused (40001), and may be tried again in another transaction.
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
    -- Instances under a key whose step runs, with the worker; and heads of lanes whose step does not. By the ids: see `hand_over`.
    select array_agg(h.id) filter (where h.worker is not null), array_agg(h.worker) filter (where h.worker is not null),
        array_agg(h.id) filter (where h.worker is null and h.in_lane and h.status <> 'queued')
    into running, workers, heads
    from (select i.id, i.status, i.in_lane,
              case when i.status = 'executing' and (i.in_lane or i.partition_key is not null) then i.locked_by
                   when i.status = 'queued' and i.in_lane then gen_durable._lane_worker(i.id) end as worker
          from gen_durable.instances i where i.id = any (p_ids) and i.finished_at is null) h;
    with ended as (
        update gen_durable.instances i
        set status = 'cancelled', claim_epoch = i.claim_epoch + 1,
            locked_by = workers[array_position(running, i.id)], lease_expires_at = null,
            awaits = null, deadline_at = null, deadline_step = null, deadline_data = null,
            last_error = coalesce(p_reason, 'cancelled'), finished_at = gen_durable.clock(), updated_at = gen_durable.clock(),
            -- Without a running step it leaves its lane and frees its key, and a number lets `place` see to those that wait. A number
            -- that it has stays: it may be the one by which the lane or the key of others is looked at again.
            held_back = false, in_lane = i.in_lane and array_position(running, i.id) is not null,
            arrival = case when i.id = any (heads)
                                or i.partition_key is not null and not i.held_back and i.status = 'runnable'
                           then nextval('gen_durable.arrivals') else i.arrival end
        where i.id = any (p_ids) and i.finished_at is null
        returning i.id
    )
    select array_agg(ended.id) into ids from ended;
    if ids is null then
        return null;
    end if;
    perform gen_durable.tell(ids, 'cancel');
    perform gen_durable.tell_parents(ids);
    -- Last: a transaction that holds a lane waits for no instance.
    if cardinality(heads) > 0 then
        perform gen_durable.unlead(heads);
    end if;
    return ids;
end $$;

-- Ends an instance from outside, at once, whatever it waits for; with p_subtree also every live instance below it.
--   called by: store::signal::cancel, SQL      index: instances_pkey or instances_key; instances_children; instances_lane
--   locks: the live instances by id, from the youngest; then as _cancel_live
-- One transaction for the whole tree: `_cancel_below` cancels a tree in pages. Returns 'cancelled', 'too_late' or 'no_target'.
create function gen_durable.cancel(
    p_id bigint, p_tenant text, p_key text, p_machines text[], p_reason text, p_subtree boolean default false
) returns text
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
declare
    target record;
    ids bigint[] := '{}';
    wanted bigint[];
begin
    select i.id, i.fsm into target from gen_durable.instances i
    where i.id = coalesce(p_id, (select k.id from gen_durable.instances k
                                 where k.tenant = coalesce(p_tenant, '') and k.correlation_guard = p_key));
    if target.id is null or (p_machines is not null and target.fsm <> all (p_machines)) then
        return 'no_target';
    end if;
    -- Below first, in the order in which the end of a child takes itself and then its parent. And once more under the locks,
    -- until nothing is new: a spawn that committed while we waited for its row has added to what is below.
    loop
        wanted := array(
            with recursive below(id, live) as (
                select i.id, i.finished_at is null from gen_durable.instances i where i.id = target.id
                union all
                select c.id, c.finished_at is null
                from below join gen_durable.instances c on c.parent_id = below.id where p_subtree
            )
            select id from below where live);
        exit when not exists (select unnest(wanted) except select unnest(ids));
        ids := wanted;
        perform i.id from gen_durable.instances i where i.id = any (ids) order by i.id desc for no key update;
    end loop;
    ids := gen_durable._cancel_live(ids, p_reason);
    return case when target.id = any (ids) then 'cancelled' else 'too_late' end;
end $$;

-- Cancels a page of what is directly below instances that have settled: their live children, and no more than p_limit rows are read.
--   called by: store::signal::cancel_below      index: instances_children, instances_pkey; as _cancel_live
--   locks: the live children by id, from the youngest, each for at most p_lock_timeout; then as _cancel_live
-- Above first: a settled parent spawns nothing more, so the children that this reads are all there will be. The first parent is read
-- after (p_generation, p_after); a child that an operator retried has no generation and comes last. Returns the ids of the children
-- that were read, how many parents were read to their end, where to go on in the next one, and how many children were cancelled.
create function gen_durable._cancel_below(
    p_parents bigint[], p_generation int, p_after bigint, p_limit int, p_reason text, p_lock_timeout text
) returns table (children bigint[], parents_read int, next_generation int, next_after bigint, cancelled int)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    parent bigint;
    room int := p_limit;
    page bigint[];
    generations int[];
    live bigint[];
    found_live bigint[] := '{}';
begin
    perform set_config('lock_timeout', p_lock_timeout, true);
    children := '{}';
    parents_read := 0;
    next_generation := p_generation;
    next_after := p_after;
    foreach parent in array p_parents loop
        exit when room = 0;
        select array_agg(c.id), array_agg(c.parent_generation), array_agg(c.id) filter (where c.live) into page, generations, live
        from (select * from (
                  (select c.id, c.parent_generation, c.finished_at is null as live from gen_durable.instances c
                   where c.parent_id = parent and (c.parent_generation, c.id) > (next_generation, next_after)
                   order by c.parent_generation, c.id limit room)
                  union all
                  (select c.id, c.parent_generation, c.finished_at is null from gen_durable.instances c
                   where c.parent_id = parent and c.parent_generation is null
                     and c.id > case when next_generation is null then next_after else 0 end
                   order by c.id limit room)) both_kinds
              order by parent_generation nulls last, id
              limit room) c;
        children := children || page;
        found_live := found_live || live;
        if cardinality(page) = room then
            next_generation := generations[room];
            next_after := page[room];
            room := 0;
        else
            room := room - coalesce(cardinality(page), 0);
            parents_read := parents_read + 1;
            next_generation := 0;
            next_after := 0;
        end if;
    end loop;
    cancelled := 0;
    if found_live <> '{}' then
        perform i.id from gen_durable.instances i where i.id = any (found_live) order by i.id desc for no key update;
        cancelled := coalesce(cardinality(gen_durable._cancel_live(found_live, p_reason)), 0);
    end if;
    return next;
end $$;

-- Frees the lanes and partition keys that cancelled instances kept while their step ran. The caller holds the locks of their rows.
--   called by: release.sql, release_expired.sql      index: instances_pkey, lanes_pkey
--   locks: the lanes, in order
-- Each draws a number of arrival: the next `place` lets those go on that wait. Returns the ids.
create function gen_durable._release(p_ids bigint[]) returns bigint[]
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
begin
    update gen_durable.instances i
    set locked_by = null, in_lane = false, arrival = nextval('gen_durable.arrivals'), updated_at = gen_durable.clock()
    where i.id = any (p_ids);
    -- The worker may have led the lane: it runs no successor there.
    perform gen_durable.unlead(p_ids);
    return p_ids;
end $$;
