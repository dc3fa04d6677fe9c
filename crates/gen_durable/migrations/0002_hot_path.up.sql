-- 0002: the inbox, and the hot path as functions. A function carries its planner settings with it: a statement that was
-- prepared while the table was empty would keep a sequential scan and a hash join for ever; these can only go by the index
-- they name.

-- The inbox of an instance: a letter stays until a step has progressed with it in hand. One with a dedup key stays without its
-- payload, so that the same letter is not presented twice; the collector deletes it when its period has passed.
create table gen_durable.signals (
    id          bigint generated always as identity primary key,
    target_id   bigint not null,                     -- no foreign key: its check would lock the target for each signal, and its cascade needs an index on all signals
    inserted_at timestamptz not null default gen_durable.clock(),
    consumed_at timestamptz,
    name        text not null,
    dedup_key   text,
    payload     jsonb not null,
    bytes       int generated always as (octet_length(payload::text)) stored, -- of the payload as a step receives it: see `signal`
    constraint signals_names_have_a_length check (octet_length(name) between 1 and 200 and octet_length(dedup_key) <= 512),
    -- Every row is in one of the two indexes by target: a trigger on `instances` deletes by them.
    constraint signals_consumed_has_a_dedup_key check (consumed_at is null or dedup_key is not null)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

create index signals_inbox on gen_durable.signals (target_id, id) where consumed_at is null;
create unique index signals_dedup on gen_durable.signals (target_id, dedup_key) where dedup_key is not null;
-- The collector's: consumed letters that are kept for their dedup keys, by the time of consumption.
create index signals_consumed on gen_durable.signals (consumed_at) where consumed_at is not null;

-- Returns how many bytes of payload may wait in an inbox. `signal` refuses a letter beyond that.
create function gen_durable.inbox_bytes_max() returns bigint
    language sql immutable parallel safe
    as 'select 8 * 1024 * 1024::bigint';

-- The letters that a step may see, as JSON: [[id, name, payload], …], the oldest first; null when there are none. The hot
-- path says the same in place: a function that is called for each row costs more than the look.
create function gen_durable.inbox_of(p_id bigint) returns text
    language sql stable
    as $$
        select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
        from gen_durable.signals s
        where s.target_id = p_id and s.consumed_at is null
    $$;

-- Returns a page of the children of one spawn as JSON, in spawn order: {"more": …, "children": […]}. The page ends after 1,000
-- children or before the child that would exceed 8 MiB; it has at least one child. `more` says that the spawn has further children.
--   called by: pick, settle, hand_over, conclude, store::family::page      index: instances_children
--   locks: nothing
create function gen_durable.children_of(p_id bigint, p_generation int, p_after bigint default 0, p_machines text[] default null)
returns text
language plpgsql stable
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    child record;
    one text;
    page text[] := '{}';
    bytes bigint := 0;
    more boolean := false;
begin
    -- Row by row: values beyond the end of the page are never read from their TOAST table.
    for child in
        select c.id, c.fsm, c.status, c.state, c.result, c.last_error, c.attempt, c.failures
        from gen_durable.instances c
        where c.parent_id = p_id and c.parent_generation = p_generation and c.id > p_after
          and (p_machines is null or c.fsm = any (p_machines))
        order by c.id
        limit 1001
    loop
        one := concat('{"id": ', child.id, ', "fsm": ', to_json(child.fsm), ', "status": "', child.status, '", "state": ', child.state,
            ', "result": ', coalesce(child.result::text, 'null'), ', "error": ', coalesce(to_json(child.last_error)::text, 'null'),
            ', "attempt": ', child.attempt, ', "failures": ', child.failures, '}');
        bytes := bytes + octet_length(one);
        more := cardinality(page) = 1000 or (bytes > 8 * 1024 * 1024 and cardinality(page) > 0);
        exit when more;
        page := page || one;
    end loop;
    return concat('{"more": ', more::text, ', "children": [', array_to_string(page, ', '), ']}');
end $$;

-- Does every statement of this transaction see what was committed before it? What the engine does looks under a lock for what
-- came before that lock, and at another level would not find it: a letter, or who is next in a lane.
--   called by: look_anew, enqueue_all, conclude, cancel      locks: nothing
create function gen_durable.looks_anew() returns boolean
    language sql stable
    as $$ select current_setting('transaction_isolation') in ('read committed', 'read uncommitted') $$;

-- Refuse to work where it does not.
--   called by: pick, settle      locks: nothing
create function gen_durable.look_anew() returns void
    language plpgsql
    as $$
begin
    if not gen_durable.looks_anew() then
        raise exception 'this works at read committed, and default_transaction_isolation is %: alter role % set default_transaction_isolation = ''read committed''',
            current_setting('transaction_isolation'), quote_ident(session_user)
            using errcode = 'invalid_transaction_state';
    end if;
end $$;

-- Returns whether a worker that knows these steps can run an instance at this step. Entries are 'machine/version/step'; an entry
-- 'machine/version' stands for every step: the worker upgrades rows of that version, and its `upgrade` judges their steps.
--   called by: pick, _set_aside_refused, hand_over, store::queue::retry_stuck, store::inspect, store::explain      locks: nothing
-- STABLE and without SET, so that the planner inlines it: a call for each row would cost more than the comparison.
create function gen_durable._knows_step(p_known text[], p_machine text, p_version int, p_step text) returns boolean
    language sql stable
    as $$ select p_machine || '/' || p_version || '/' || p_step = any (p_known) or p_machine || '/' || p_version = any (p_known) $$;

-- Returns the number after which the next placement begins: the watermark, or less if transactions have ended that were open when it passed
-- numbers of theirs.
--   called by: pick, _place_new, enqueue_all at once      index: none      locks: nothing
create function gen_durable._placement_start(p_placed_to bigint, p_open_xids xid8[], p_open_since bigint[], p_seen pg_snapshot)
returns bigint
    language sql immutable
    as $$
        select least(p_placed_to, min(open.since)) from unnest(p_open_xids, p_open_since) as open(xid, since)
        where pg_visible_in_snapshot(open.xid, p_seen)
    $$;

-- Places the instances that drew a number after the last placement, and moves the watermark.
--   called by: pick, _set_aside_refused, repair      index: placement_watermarks_pkey; as place      locks: the placer, skipping it if another holds it; as place
-- A number may be drawn long before its transaction commits. The watermark passes it all the same, and remembers the transactions that
-- were open then: when one of them has ended, the next placement reads all numbers since that transaction began, once. So a
-- transaction that stays open costs a pick nothing, although the index keeps an entry for every number that was drawn and placed
-- since it began.
--   1. A placement reads how far numbers are drawn, and takes its transaction id after that. A transaction that draws a number has
--      its own id before. So all transactions that drew up to there have an id below.
--   2. The next placement that moves the watermark has a newer snapshot, in which each of them has ended, so that its rows are
--      seen and placed, or is listed as open. The end of a snapshot is above that id, since the first placement has ended.
-- Its callers pin the plans.
create function gen_durable._place_new(p_limit int) returns void
language plpgsql
as $$
declare
    watermark gen_durable.placement_watermarks;
    drawn_to bigint;
    seen pg_snapshot;
    start bigint;
    reached bigint;
    moves_to bigint;
begin
    if pg_current_xact_id_if_assigned() is null then
        select case when a.is_called then a.last_value else a.last_value - 1 end into drawn_to from gen_durable.arrivals a;
    end if;
    perform from gen_durable.placer where one for update skip locked;
    if not found then
        return;
    end if;
    select w.* into watermark from gen_durable.placement_watermarks w order by w.n desc limit 1;
    seen := pg_current_snapshot();
    start := gen_durable._placement_start(watermark.placed_to, watermark.open_xids, watermark.open_since, seen);
    reached := gen_durable.place(start, p_limit);
    -- Down, if an instance between the start and the watermark could not be placed.
    moves_to := least(watermark.drawn, reached);
    -- A watermark that lags by a few numbers costs less than a row for each of them.
    if start = watermark.placed_to and moves_to - watermark.placed_to < 100 and coalesce(drawn_to - watermark.drawn, 0) < 100 then
        return;
    end if;
    insert into gen_durable.placement_watermarks (placed_to, drawn, drawn_before, open_xids, open_since, sweep_due_at)
    select moves_to, coalesce(drawn_to, watermark.drawn), case when drawn_to is null then watermark.drawn_before else pg_current_xact_id() end,
        coalesce(array_agg(open.xid), '{}'), coalesce(array_agg(open.since), '{}'), watermark.sweep_due_at
    from (select old.xid, old.since from unnest(watermark.open_xids, watermark.open_since) as old(xid, since)
          where not pg_visible_in_snapshot(old.xid, seen)
          union all
          select new.xid, watermark.placed_to from pg_snapshot_xip(seen) as new(xid)
          where moves_to > watermark.placed_to and new.xid < watermark.drawn_before and new.xid <> all (watermark.open_xids)) open;
    delete from gen_durable.placement_watermarks w where w.n = watermark.n;
end $$;

-- Claim what is runnable, for every queue that has room, in one statement. A row at a step that the caller's build does not know is
-- left for a worker that does.
--   called by: store::pick::claim           index: instances_pick, then instances_pkey
--   locks: instances, FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id): it waits for nobody.
-- Ranges are (queue, priority, from): `from` is the watermark below which this process has already looked, so that a
-- pick does not wade through the dead entries of all that was claimed before. The first row of the answer has no id:
-- it says what time it is, and when the next row falls due.
create function gen_durable.pick(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_known text[], p_worker uuid, p_lease_seconds float8, p_suspects int
) returns table (
    id bigint, fsm text, fsm_version int, step text, data text, state text, attempt int,
    claim_epoch bigint, step_seq bigint, visit bigint, queue text, priority smallint, eligible_at timestamptz,
    tenant text, traceparent text, keyed boolean, crash_count smallint, next_due timestamptz, paused text[],
    awaits text[], inbox text, children text, parent_id bigint, freed_by bigint, marks bigint[], failures int, token bigint
)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    claimed bigint;
    room bigint := (select coalesce(sum(free), 0) from unnest(p_room) as free);
    placement record;
begin
    perform gen_durable.look_anew();
    -- Instances that wait in a lane or for a turn are placed before any instance is claimed. Where that means to read many numbers, only the
    -- picker that gets the placer reads them.
    select w.placed_to, w.open_xids, w.open_since, (select a.last_value from gen_durable.arrivals a) as drawn into placement
    from gen_durable.placement_watermarks w order by w.n desc limit 1;
    if placement.drawn - placement.placed_to >= 200
       or placement.open_xids <> '{}' and gen_durable._placement_start(
           placement.placed_to, placement.open_xids, placement.open_since, pg_current_snapshot()) < placement.placed_to
       or exists (select from gen_durable.instances i where i.arrival > placement.placed_to) then
        perform gen_durable._place_new(1000);
    end if;

    return query
    with wanted as materialized (
        select open.queue, open.free
        from unnest(p_queues, p_room) as open(queue, free)
        where not exists (select from gen_durable.queues q where q.name = open.queue and q.paused_at is not null)
    ),
    candidate as materialized (
        select chosen.id
        from wanted
        cross join lateral (
            select found.id
            from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id)
                as range(queue, priority, since, since_id)
            cross join lateral (
                select i.id
                from gen_durable.instances i
                where i.queue = range.queue and i.priority = range.priority
                  and i.status = 'runnable' and i.crash_count < 2 and not i.held_back
                  and (i.eligible_at, i.id) > (range.since, range.since_id)
                  and i.eligible_at <= gen_durable.clock()
                  and gen_durable._knows_step(p_known, i.fsm, i.fsm_version, i.step)
                order by i.eligible_at, i.id
                limit wanted.free
                for no key update skip locked
            ) found
            where range.queue = wanted.queue
            limit wanted.free
        ) chosen
    )
    update gen_durable.instances i
    set status = 'executing', locked_by = p_worker,
        lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
        claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
    from candidate
    where i.id = candidate.id
    returning i.id, i.fsm, i.fsm_version, i.step, i.data::text, i.state::text, i.attempt,
        i.claim_epoch, i.step_seq, i.visit, i.queue, i.priority, i.eligible_at,
        i.tenant, i.traceparent, i.partition_key is not null or i.lane_key is not null, i.crash_count,
        null::timestamptz, null::text[],
        i.awaits, (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null), case when i.join_generation > 0 then gen_durable.children_of(i.id, i.join_generation) end,
        i.parent_id, null::bigint, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens');
    get diagnostics claimed = row_count;

    -- At most one suspect at a time in a process: if it dies, we know who it was.
    if p_suspects > 0 then
        return query
        with candidate as materialized (
            select found.id
            from unnest(p_queues) as wanted(queue)
            cross join lateral (
                select i.id
                from gen_durable.instances i
                where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2 and not i.held_back
                  and i.eligible_at <= gen_durable.clock()
                  and gen_durable._knows_step(p_known, i.fsm, i.fsm_version, i.step)
                order by i.eligible_at, i.id
                limit 1
                for no key update skip locked
            ) found
            where not exists (select from gen_durable.queues q where q.name = wanted.queue and q.paused_at is not null)
            limit 1
        )
        update gen_durable.instances i
        set status = 'executing', locked_by = p_worker,
            lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
            claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
        from candidate
        where i.id = candidate.id
        returning i.id, i.fsm, i.fsm_version, i.step, i.data::text, i.state::text, i.attempt,
            i.claim_epoch, i.step_seq, i.visit, i.queue, i.priority, i.eligible_at,
            i.tenant, i.traceparent, i.partition_key is not null or i.lane_key is not null, i.crash_count,
            null::timestamptz, null::text[], i.awaits, gen_durable.inbox_of(i.id),
            case when i.join_generation > 0 then gen_durable.children_of(i.id, i.join_generation) end,
            i.parent_id, null::bigint, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens');
    end if;

    -- The time; the next due time of these ranges when everything that was due is taken; which queues are shut.
    return query
    select null::bigint, null, null::int, null, null, null, null::int, null::bigint, null::bigint, null::bigint, null,
        null::smallint, gen_durable.clock(), null, null, false, null::smallint,
        case when claimed < room then (
            select min(due.eligible_at)
            from unnest(p_range_queues, p_range_priorities) as range(queue, priority)
            cross join lateral (
                select i.eligible_at
                from gen_durable.instances i
                where i.queue = range.queue and i.priority = range.priority
                  and i.status = 'runnable' and i.crash_count < 2 and not i.held_back
                  and i.eligible_at > gen_durable.clock() and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
                order by i.eligible_at
                limit 1
            ) due
        ) end,
        (select array_agg(q.name) from gen_durable.queues q where q.name = any (p_queues) and q.paused_at is not null),
        null::text[], null, null, null::bigint, null::bigint,
        null::bigint[], null::int, null::bigint;
end $$;

-- Finds the candidates of a refused pick whose claim the database refuses, and sets them aside as `stuck` with the error as reason.
-- One statement claims for all queues: such an instance would stop all others.
--   called by: store::pick::set_aside_refused      index: instances_pick, instances_suspects, instances_pkey; as _place_new
--   locks: as _place_new; the candidates, FOR NO KEY UPDATE SKIP LOCKED, until the end of the statement
-- Claims each candidate in a subtransaction and rolls that back. Raises an error that blames the server instead of the row.
create function gen_durable._set_aside_refused(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[], p_known text[]
) returns table (id bigint, machine text, step text, attempt int, reason text)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    candidate bigint;
begin
    -- The refused pick placed instances and took that back: a culprit that waits for its place would be no candidate.
    perform gen_durable._place_new(1000);
    for candidate in
        select found.id
        from unnest(p_queues, p_room) as wanted(queue, free)
        cross join unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id) as range(queue, priority, since, since_id)
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.queue = range.queue and i.priority = range.priority
              and i.status = 'runnable' and i.crash_count < 2 and not i.held_back
              and (i.eligible_at, i.id) > (range.since, range.since_id) and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.fsm, i.fsm_version, i.step)
            order by i.eligible_at, i.id
            limit wanted.free
            for no key update skip locked
        ) found
        where range.queue = wanted.queue
        union all
        select found.id
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2 and not i.held_back
              and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.fsm, i.fsm_version, i.step)
            order by i.eligible_at, i.id
            limit 1
            for no key update skip locked
        ) found
    loop
        begin
            update gen_durable.instances i
            set status = 'executing', locked_by = gen_random_uuid(), claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
            where i.id = candidate;
            perform i.data::text, i.state::text, gen_durable.inbox_of(i.id),
                case when i.join_generation > 0 then gen_durable.children_of(i.id, i.join_generation) end
            from gen_durable.instances i where i.id = candidate;
            raise exception using errcode = 'GD000', message = 'rolls the claim back';
        exception
            when sqlstate 'GD000' then
                null;
            when others then
                if left(sqlstate, 2) not in ('21', '22', '23', '44', '54', 'P0') then
                    raise;
                end if;
                return query
                update gen_durable.instances i
                set status = 'stuck', last_error = left('a pick of this instance was refused: ' || sqlerrm, 8192),
                    claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock(),
                    -- The next under its partition key may run.
                    arrival = case when i.partition_key is not null then nextval('gen_durable.arrivals') else i.arrival end
                where i.id = candidate
                returning i.id, i.fsm, i.step, i.attempt, i.last_error;
                perform gen_durable.tell(array[candidate], 'stuck');
        end;
    end loop;
end $$;

-- Write what steps decided: one entry an ending, all in one transaction.
--   called by: store::settle, settle_keyed, conclude      index: instances_pkey, lanes_pkey, and nothing else
--   locks: instances by id, in the order of the arrays (the caller sorts them), for at most p_lock_timeout.
-- The guard is (id, claim_epoch, step_seq) and no word about status: the epoch implies that it is held, and a literal would
-- let the planner walk the index of executing rows. A rise below 0 enters a step: its attempts begin anew. An array may
-- be empty where every value is null (or 0): each one that is not costs a copy of its values. Answers the ids that were
-- written; the others were not ours any more.
create function gen_durable.settle(
    p_ids bigint[], p_epochs bigint[], p_seqs bigint[], p_statuses text[], p_versions int[],
    p_steps text[], p_data text[], p_states text[], p_results text[], p_errors text[],
    p_rises int[], p_delays float8[], p_lock_timeout text
) returns table (id bigint, inbox text, children text)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    if p_lock_timeout is not null then
        perform gen_durable.look_anew();
        perform set_config('lock_timeout', p_lock_timeout, true);
    end if;
    -- Durable before anything it leads to begins, whatever the role or the database was set to; also in a step's own
    -- transaction.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return query
    update gen_durable.instances i
    set status = e.status,
        fsm_version = coalesce(e.version, i.fsm_version),
        step = coalesce(e.step, i.step),
        data = case when e.step is null then i.data else e.data::jsonb end,
        state = coalesce(e.state::jsonb, i.state),
        result = e.result::jsonb,
        last_error = case when e.error is not null then e.error
                          when e.rise < 0 or e.status = 'done' then null
                          else i.last_error end,
        attempt = case when e.rise < 0 then 0 else i.attempt + coalesce(e.rise, 0) end,
        -- A retry that the step itself asked for carries no error, and is no failure.
        failures = case when e.rise < 0 then 0 when e.rise > 0 and e.error is not null then i.failures + 1 else i.failures end,
        visit = case when e.rise < 0 then i.step_seq + 1 else i.visit end,
        -- A retry sees the same letters again; an ending that enters a step or settles leaves the wait behind.
        awaits = case when e.rise < 0 or e.status in ('done', 'failed', 'cancelled') then null else i.awaits end,
        -- Under a partition key, whoever ends a step goes to the back; in a lane, whoever settles leaves it, unless it failed
        -- and was to keep its place.
        held_back = e.status = 'runnable' and i.partition_key is not null,
        in_lane = i.in_lane and (e.status not in ('done', 'failed', 'cancelled') or (e.status = 'failed' and i.lane_blocks)),
        -- A run-ahead commit leaves every indexed column alone, so that it stays on its page and off the indexes.
        eligible_at = case when e.status = 'runnable'
                           then gen_durable.clock() + make_interval(secs => coalesce(e.delay, 0)) else i.eligible_at end,
        step_seq = i.step_seq + 1,
        claim_epoch = case when e.status = 'executing' then i.claim_epoch else i.claim_epoch + 1 end,
        crash_count = 0,
        -- One that ran without a claim of its own, in a lane that its worker leads, has one from now on.
        locked_by = case when e.status = 'executing' then coalesce(i.locked_by, (
            select l.led_by from gen_durable.lanes l where l.tenant = i.tenant and l.key = i.lane_key)) end,
        lease_expires_at = case when e.status = 'executing' then i.lease_expires_at end,
        finished_at = case when e.status in ('done', 'failed', 'cancelled') then gen_durable.clock() end,
        updated_at = gen_durable.clock()
    from unnest(p_ids, p_epochs, p_seqs, p_statuses::gen_durable.durable_status[], p_versions, p_steps, p_data, p_states,
                p_results, p_errors, p_rises, p_delays)
        as e(id, epoch, seq, status, version, step, data, state, result, error, rise, delay)
    where i.id = e.id and i.claim_epoch = e.epoch and i.step_seq = e.seq
    -- What runs ahead sees the letters that arrived during its last step.
    returning i.id,
        case when e.status = 'executing' then (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null) end,
        case when e.status = 'executing' and i.join_generation > 0
             then gen_durable.children_of(i.id, i.join_generation) end;
end $$;
