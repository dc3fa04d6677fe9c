-- 0003: what instances do to one another: signals, spawns and joins, keys, deadlines.

-- Some children have settled: count them off at their parents, and release the joins that are complete.
--   called by: conclude, cancel, store::lease::reap      index: instances_pkey
--   locks: the parents by id, in order, after the children's own rows
-- Only a child of the parent's present spawn counts: one of an older spawn changes nothing.
create function gen_durable.tell_parents(p_children bigint[]) returns void
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    parents bigint[];
begin
    parents := array(select distinct c.parent_id from gen_durable.instances c
                     where c.id = any (p_children) and c.parent_generation is not null);
    perform p.id from gen_durable.instances p where p.id = any (parents) order by p.id for no key update;

    with told as materialized (
        select c.parent_id, c.parent_generation, count(*)::int as count
        from gen_durable.instances c
        where c.id = any (p_children) and c.parent_generation is not null
        group by c.parent_id, c.parent_generation
    )
    update gen_durable.instances p
    set children_pending = p.children_pending - told.count,
        status = case when p.status = 'awaiting_children' and (p.children_pending - told.count = 0 or p.join_any)
                      then 'runnable' else p.status end,
        eligible_at = case when p.status = 'awaiting_children' and (p.children_pending - told.count = 0 or p.join_any)
                           then gen_durable.clock() else p.eligible_at end,
        deadline_at = case when p.status = 'awaiting_children' and (p.children_pending - told.count = 0 or p.join_any)
                           then null else p.deadline_at end,
        held_back = p.held_back or p.partition_key is not null and p.status = 'awaiting_children'
                                   and (p.children_pending - told.count = 0 or p.join_any),
        arrival = case when p.partition_key is not null and p.status = 'awaiting_children'
                            and (p.children_pending - told.count = 0 or p.join_any)
                       then nextval('gen_durable.arrivals') else p.arrival end,
        updated_at = gen_durable.clock()
    from told
    where p.id = told.parent_id and p.join_generation = told.parent_generation;
    perform gen_durable.tell_woken(parents, 'children');
end $$;

-- Returns the head of a lane: the instance that has it, or is next to.
--   called by: refuse_own_lane      index: lanes_pkey, instances_lane      locks: nothing
create function gen_durable._lane_head(p_tenant text, p_key text) returns bigint
    language sql stable
    as $$
        select head.id from gen_durable.lanes l
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.lane_hash = gen_durable.lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
              and i.tenant = l.tenant and i.lane_key = l.key
            order by i.lane_hash, i.lane_position
            limit 1
        ) head
        where l.tenant = p_tenant and l.key = p_key
    $$;

-- Refuses children that could never run: in a lane that one of their ancestors has, or in one whose head waits, over children that are
-- queued in other lanes, for such an ancestor. Each would wait for the other for ever.
--   called by: enqueue_all, for children      index: instances_pkey, instances_children; as _lane_head      locks: nothing
-- It reads what is committed: of two spawns that close a cycle at the same time, neither sees the other. A join with a deadline, or of
-- any child, ends by itself and is no part of a cycle.
create function gen_durable.refuse_own_lane(p_entries jsonb, p_parent bigint) returns void
language plpgsql
as $$
declare
    ancestor record;
    holders bigint[] := '{}';
    waits_for record;
begin
    for ancestor in
        with recursive above(id, parent_id, tenant, lane_key, in_lane) as (
            select i.id, i.parent_id, i.tenant, i.lane_key, i.in_lane from gen_durable.instances i where i.id = p_parent
            union all
            select i.id, i.parent_id, i.tenant, i.lane_key, i.in_lane
            from above join gen_durable.instances i on i.id = above.parent_id
        )
        select * from above where above.in_lane
    loop
        if exists (select from jsonb_array_elements(p_entries) e
                   where e->>'lane' = ancestor.lane_key and coalesce(e->>'tenant', '') = ancestor.tenant) then
            raise exception 'a child in the lane % would wait for instance %, which has that lane and waits for the child',
                ancestor.lane_key, ancestor.id
                using errcode = 'check_violation', hint = 'give the child another lane, or enqueue it without waiting for it';
        end if;
        holders := holders || ancestor.id;
    end loop;
    if holders = '{}' then
        return;
    end if;
    -- From the head of each lane that a child enters to what that head waits for, 20 steps deep and among the first 1,000 found.
    with recursive chain(id, lane, steps) as (
        select gen_durable._lane_head(k.tenant, k.key), k.key, 1
        from (select distinct coalesce(e->>'tenant', '') as tenant, e->>'lane' as key
              from jsonb_array_elements(p_entries) e where e ? 'lane') k
        union
        select case when c.status = 'queued' then gen_durable._lane_head(c.tenant, c.lane_key) else c.id end, chain.lane, chain.steps + 1
        from chain
        join gen_durable.instances p on p.id = chain.id
        cross join lateral (
            select c.id, c.status, c.tenant, c.lane_key, c.finished_at from gen_durable.instances c
            where c.parent_id = p.id and c.parent_generation = p.join_generation
            order by c.id
            limit 1000
        ) c
        where chain.steps < 20 and p.status = 'awaiting_children' and p.deadline_at is null and not p.join_any
          and c.finished_at is null
    )
    select found_one.id, found_one.lane into waits_for
    from (select chain.id, chain.lane from chain limit 1000) found_one
    where found_one.id = any (holders)
    limit 1;
    if waits_for.id is not null then
        raise exception 'a child in the lane % would wait for ever: the head of that lane waits for a child behind instance %, which waits for this child',
            waits_for.lane, waits_for.id
            using errcode = 'check_violation',
                hint = 'let lanes wait for one another in one order only, give the join a deadline, or enqueue the child without waiting for it';
    end if;
end $$;

-- Insert instances that may carry a key. Rows are taken in the order of their keys, so that two batches in opposite order
-- wait for one another and do not deadlock.
--   called by: store::enqueue, conclude, SQL      index: instances_key; if at once placement_watermarks_pkey, and as place
--   locks: nothing that exists; waits for a transaction that is about to take the same key. At once: the placer and lanes
-- Answers one row an entry: its place, the id (of the holder, if the key is taken), and whether it is new. Raises unique_violation if
-- the key is held by an instance of another machine (neither `fsm` nor one of `former_names`).
create function gen_durable.enqueue_all(
    p_entries jsonb, p_parent bigint default null, p_generation int default null, p_at_once boolean default false
)
returns table (place int, id bigint, is_new boolean, eligible_at timestamptz)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    entry record;
    made record;
    tries int;
    lane_tenants text[];
    lane_keys text[];
    lane_taken boolean[];
    round bigint;
    place_from bigint;
    watermark gen_durable.placement_watermarks;
begin
    if jsonb_path_exists(p_entries, '$[*].lane') or jsonb_path_exists(p_entries, '$[*].partition') then
        -- This transaction has an id before it draws a number of arrival: see `_place_new`.
        perform pg_current_xact_id();
        -- A child that stood behind one of its own waiting ancestors would stand there for ever.
        if p_parent is not null then
            perform gen_durable.refuse_own_lane(p_entries, p_parent);
        end if;
        -- In a transaction that ends with this statement, places in lanes may be given at once: by whoever holds the placer,
        -- and after all that arrived before has its place. Not where one has a partition key as well: it would come after those
        -- behind it. Nor for very many: while they are written their lanes, and whoever gives out places, would stand still.
        if p_at_once and gen_durable.looks_anew() and jsonb_array_length(p_entries) <= 10000 and jsonb_path_exists(p_entries, '$[*].lane')
           and not jsonb_path_exists(p_entries, '$[*].key')
           and not jsonb_path_exists(p_entries, '$[*] ? (exists (@.lane) && exists (@.partition))') then
            -- Any watermark leads to all that was committed before it is read, so it is read without the placer. After a transaction that was
            -- open for long, a pick reads the numbers drawn since it began. A caller does not wait for that.
            select w.* into watermark from gen_durable.placement_watermarks w order by w.n desc limit 1;
            place_from := watermark.placed_to;
            if watermark.open_xids <> '{}' then
                place_from := gen_durable._placement_start(place_from, watermark.open_xids, watermark.open_since, pg_current_snapshot());
            end if;
            if watermark.placed_to - place_from <= 2000 and gen_durable.place(place_from, 1000) is null then
                select array_agg(l.tenant), array_agg(l.key), array_agg(l.taken) into lane_tenants, lane_keys, lane_taken
                from gen_durable.enter_lanes(p_entries) l;
                round := nextval('gen_durable.rounds') << 20;
            end if;
        end if;
    end if;
    -- Without keys: one statement for all of them.
    if not jsonb_path_exists(p_entries, '$[*].key') then
        return query
        with made as (
            insert into gen_durable.instances as i
                (fsm, fsm_version, step, data, state, queue, priority, tenant, eligible_at, traceparent, parent_id, parent_generation,
                 partition_key, lane_key, lane_blocks, status, held_back, in_lane, lane_position, arrival)
            select (e.value->>'fsm')::gen_durable.name, coalesce((e.value->>'version')::int, 1), (e.value->>'step')::gen_durable.name,
                e.value->'data', e.value->'state', coalesce(e.value->>'queue', 'default')::gen_durable.queue_name, coalesce((e.value->>'priority')::smallint, 0::smallint),
                coalesce(e.value->>'tenant', '')::gen_durable.tenant_name,
                gen_durable.due((e.value->>'at')::timestamptz, (e.value->>'delay')::float8),
                e.value->>'traceparent', p_parent, p_generation,
                (e.value->>'partition')::gen_durable.key_name, (e.value->>'lane')::gen_durable.key_name, coalesce((e.value->>'lane_blocks')::boolean, false),
                case when not e.value ? 'lane' or (e.nth = 1 and not l.taken) then 'runnable' else 'queued' end::gen_durable.durable_status,
                e.value ? 'partition' and not e.value ? 'lane',
                l.taken is not null,
                case when l.taken is not null then round + e.place end,
                case when e.value ?| array['partition', 'lane'] and l.taken is null then nextval('gen_durable.arrivals') end
            from (select e.value, e.place, row_number() over (
                      partition by coalesce(e.value->>'tenant', ''), e.value->>'lane' order by e.place) as nth
                  from jsonb_array_elements(p_entries) with ordinality e(value, place)) e
            left join unnest(lane_tenants, lane_keys, lane_taken) as l(tenant, key, taken)
                on l.tenant = coalesce(e.value->>'tenant', '') and l.key = e.value->>'lane'
            order by e.place
            returning i.id, i.eligible_at
        )
        select (row_number() over (order by made.id))::int, made.id, true, made.eligible_at from made;
        return;
    end if;
    for entry in
        -- By key; but ids and numbers of arrival are drawn in the order of the entries: children are read in the order of their ids.
        select e.value, e.place, e.id, e.arrival
        from (select e.value, e.place, nextval('gen_durable.instances_id_seq') as id,
                     case when e.value ?| array['partition', 'lane'] then nextval('gen_durable.arrivals') end as arrival
              from jsonb_array_elements(p_entries) with ordinality e(value, place)
              order by e.place) e
        order by coalesce(e.value->>'tenant', ''), e.value->>'key', e.place
    loop
        tries := 0;
        loop
            insert into gen_durable.instances as i
                (id, fsm, fsm_version, step, data, state, queue, priority, tenant, eligible_at, traceparent,
                 correlation_key, correlation_scope, parent_id, parent_generation,
                 partition_key, lane_key, lane_blocks, status, held_back, arrival)
            overriding system value
            values (
                entry.id, (entry.value->>'fsm')::gen_durable.name, coalesce((entry.value->>'version')::int, 1), (entry.value->>'step')::gen_durable.name,
                entry.value->'data', entry.value->'state', coalesce(entry.value->>'queue', 'default')::gen_durable.queue_name,
                coalesce((entry.value->>'priority')::smallint, 0::smallint), coalesce(entry.value->>'tenant', '')::gen_durable.tenant_name,
                gen_durable.due((entry.value->>'at')::timestamptz, (entry.value->>'delay')::float8),
                entry.value->>'traceparent', (entry.value->>'key')::gen_durable.key_name, gen_durable.key_scope(entry.value->>'scope'),
                p_parent, p_generation,
                (entry.value->>'partition')::gen_durable.key_name, (entry.value->>'lane')::gen_durable.key_name, coalesce((entry.value->>'lane_blocks')::boolean, false),
                case when entry.value ? 'lane' then 'queued' else 'runnable' end::gen_durable.durable_status,
                entry.value ? 'partition' and not entry.value ? 'lane', entry.arrival)
            on conflict (tenant, correlation_guard) where correlation_guard is not null do nothing
            returning i.id, i.eligible_at into made;
            if made.id is not null then
                return query select entry.place::int, made.id, true, made.eligible_at;
                exit;
            end if;
            -- Taken: by whom? The holder may settle between the two looks; then the key is free again.
            select i.id, i.eligible_at, i.fsm into made
            from gen_durable.instances i
            where i.tenant = coalesce(entry.value->>'tenant', '') and i.correlation_guard = entry.value->>'key';
            if made.id is not null then
                if made.fsm <> entry.value->>'fsm' and not coalesce(entry.value->'former_names' ? made.fsm, false) then
                    raise exception 'the key % is held by instance % of machine %, not of %', quote_literal(entry.value->>'key'),
                        made.id, made.fsm, entry.value->>'fsm'
                        using errcode = 'unique_violation', hint = 'keys are unique across machines: give each machine''s keys a prefix';
                end if;
                return query select entry.place::int, made.id, false, made.eligible_at;
                exit;
            end if;
            tries := tries + 1;
            if tries > 100 then
                raise exception 'the key % is taken by an instance that this transaction cannot see', entry.value->>'key'
                    using errcode = 'serialization_failure';
            end if;
        end loop;
    end loop;
end $$;

-- Write endings that do more than end: they wait, spawn, consume letters, carry riders, or settle a child.
--   called by: store::settle::conclude      index: instances_pkey, signals_pkey, signals_inbox, instances_key
--   locks: the endings' own rows by id, then parents by id, then lanes, then the targets of riding signals
-- Everything after the first statement goes by the ids that it wrote: an owner that lost its claim changes nothing.
create function gen_durable.conclude(p_endings jsonb, p_lock_timeout text)
returns table (id bigint, status text, inbox text, children text)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    written bigint[];
    settled bigint[];
    freeing bigint[];
    ending jsonb;
    spawned int;
    taken int;
    riders jsonb;
    rider text;
    answer text;
    -- Part of a transaction that did something before: its end is not this statement's.
    larger boolean := p_lock_timeout is null or pg_current_xact_id_if_assigned() is not null;
    looks_anew boolean := gen_durable.looks_anew();
begin
    select array_agg(w.id) into written
    from (
        select array_agg((e->>'id')::bigint order by o) ids, array_agg((e->>'epoch')::bigint order by o) epochs,
            array_agg((e->>'seq')::bigint order by o) seqs, array_agg(e->>'status' order by o) statuses,
            array_agg((e->>'version')::int order by o) versions, array_agg(e->>'step' order by o) steps,
            array_agg((e->'data')::text order by o) datas, array_agg((e->'state')::text order by o) states,
            array_agg((e->'result')::text order by o) results, array_agg(e->>'error' order by o) errors,
            array_agg((e->>'rise')::int order by o) rises, array_agg((e->>'delay')::float8 order by o) delays
        from jsonb_array_elements(p_endings) with ordinality x(e, o)
    ) a
    cross join lateral gen_durable.settle(a.ids, a.epochs, a.seqs, a.statuses, a.versions, a.steps, a.datas, a.states,
        a.results, a.errors, a.rises, a.delays, p_lock_timeout) w;
    if written is null then
        return;
    end if;
    if not looks_anew and jsonb_path_exists(p_endings, '$[*].awaits') then
        raise exception 'a step''s transaction at % cannot end by waiting for a signal: one that came meanwhile would not be seen. End it with next(..) and wait in that step, or use read committed',
            current_setting('transaction_isolation') using errcode = 'feature_not_supported';
    end if;

    -- Letters that the step had in hand when it progressed or settled. One with a dedup key is remembered, without its payload.
    with used as (
        select x.value::bigint as id
        from jsonb_array_elements(p_endings) e
        cross join lateral jsonb_array_elements_text(e->'consumed') x
        where e ? 'consumed' and (e->>'id')::bigint = any (written)
    ), gone as (
        delete from gen_durable.signals s using used where s.id = used.id and s.dedup_key is null
    )
    update gen_durable.signals s set consumed_at = gen_durable.clock(), payload = 'null'
    from used where s.id = used.id and s.dedup_key is not null;

    for ending in
        select e from jsonb_array_elements(p_endings) e
        where (e ? 'awaits' or e ? 'spawn' or e ? 'births' or e ? 'letters' or e ? 'at') and (e->>'id')::bigint = any (written)
        order by (e->>'id')::bigint
    loop
        if ending ? 'awaits' or ending ? 'spawn' then
            update gen_durable.instances i
            set awaits = case when ending ? 'awaits' then array(select jsonb_array_elements_text(ending->'awaits')) end,
                deadline_at = case when ending->'deadline' ? 'at'
                    then greatest((ending->'deadline'->>'at')::timestamptz, gen_durable.clock())
                    else gen_durable.clock() + make_interval(secs => (ending->'deadline'->>'after')::float8) end,
                deadline_step = ending->'deadline'->>'step',
                deadline_data = ending->'deadline'->'data',
                join_generation = i.join_generation + (ending ? 'spawn')::int,
                join_any = coalesce((ending->'spawn'->>'any')::boolean, false)
            where i.id = (ending->>'id')::bigint;
        end if;
        if ending ? 'awaits' then
            -- Again, with a snapshot that is newer than our lock on the row: a letter that came while we parked is here
            -- or its sender waits for us. Letters that the step had already seen do not wake it: by their ids, since ids
            -- commit out of order.
            update gen_durable.instances i
            set status = 'runnable', deadline_at = null, eligible_at = gen_durable.clock(),
                held_back = i.partition_key is not null
            where i.id = (ending->>'id')::bigint and exists (
                select from gen_durable.signals s
                where s.target_id = i.id and s.consumed_at is null and s.name = any (i.awaits)
                  and s.id <> all (array(select jsonb_array_elements_text(coalesce(ending->'seen', '[]'))::bigint)));
        end if;
        if ending ? 'spawn' then
            select count(*) filter (where c.is_new), count(*) filter (where not c.is_new) into spawned, taken
            from gen_durable.instances i
            cross join lateral gen_durable.enqueue_all(ending->'spawn'->'children', i.id, i.join_generation) c
            where i.id = (ending->>'id')::bigint;
            if taken > 0 and (ending->'spawn'->>'taken') = 'fail' then
                raise exception '% of the children have a key that is taken', taken using errcode = 'unique_violation';
            end if;
            update gen_durable.instances i
            set children_pending = spawned,
                status = case when spawned = 0 then 'runnable' else i.status end,
                held_back = spawned = 0 and i.partition_key is not null,
                deadline_at = case when spawned = 0 then null else i.deadline_at end,
                eligible_at = gen_durable.clock()
            where i.id = (ending->>'id')::bigint;
        end if;
        if ending ? 'births' then
            perform gen_durable.enqueue_all(ending->'births');
        end if;
        if ending ? 'repeats' then
            perform gen_durable.arm((ending->>'id')::bigint, ending->'repeats');
        end if;
        if ending ? 'at' then
            update gen_durable.instances i set eligible_at = greatest((ending->>'at')::timestamptz, gen_durable.clock())
            where i.id = (ending->>'id')::bigint and i.status = 'runnable';
        end if;
    end loop;
    perform gen_durable.tell_endings(p_endings, written);

    -- Children that settled, told to their parents: all of the batch at once. By the endings and not by a predicate on the
    -- table, which would lead the planner to the index of all that has ever finished.
    settled := array(select (e->>'id')::bigint from jsonb_array_elements(p_endings) e
                     where e ? 'child' and (e->>'id')::bigint = any (written));
    if cardinality(settled) > 0 then
        perform gen_durable.tell_parents(settled);
    end if;

    -- Lanes and partition keys that these endings free.
    freeing := array(select (e->>'id')::bigint from jsonb_array_elements(p_endings) e
                     where e ? 'keyed' and (e->>'id')::bigint = any (written));
    if cardinality(freeing) > 0 and looks_anew then
        perform gen_durable.hand_over(freeing, '{}', '{}', null, 0, '{}');
    elsif cardinality(freeing) > 0 then
        -- Who came meanwhile is not seen here: the pickers see to who is next.
        update gen_durable.instances i set arrival = nextval('gen_durable.arrivals')
        where i.id = any (freeing) and (i.finished_at is not null or i.partition_key is not null and i.status <> 'executing');
        perform gen_durable.unlead(array(select i.id from gen_durable.instances i
                                         where i.id = any (freeing) and i.finished_at is not null and not coalesce(i.in_lane, false)));
    end if;

    -- Letters that ride along, last: their targets are other instances' rows, which signal_all takes in one order.
    riders := (select jsonb_agg(l) from jsonb_array_elements(p_endings) e
               cross join lateral jsonb_array_elements(e->'letters') l
               where e ? 'letters' and (e->>'id')::bigint = any (written));
    if riders is not null then
        select riders->(a.place - 1)->>'name', a.answer into rider, answer
        from gen_durable.signal_all(riders) a where a.answer in ('no_target', 'inbox_full') limit 1;
        if found then
            -- P0D01: the inbox is full. The same step may be accepted later, so its policy decides (see store::fault).
            raise exception 'a signal % that rides along: %', rider, answer
                using errcode = case answer when 'inbox_full' then 'P0D01' else '23503' end;
        end if;
    end if;

    -- Events that ride along, last of all: the heads of their tenants' logs are held until the commit.
    if jsonb_path_exists(p_endings, '$[*].events') then
        perform gen_durable.record_riders(p_endings, written, larger);
    end if;

    return query
    select i.id, i.status::text,
        case when i.status = 'executing' then gen_durable.inbox_of(i.id) end,
        case when i.status = 'executing' and i.join_generation > 0 then gen_durable.children_of(i.id, i.join_generation) end
    from gen_durable.instances i
    where i.id = any (written);
end $$;
