-- 0002: the hot path as functions. A function carries its planner settings with it: a statement that was prepared while
-- the table was empty would keep a sequential scan and a hash join for ever; these can only go by the index they name.

-- Claim what is runnable, for every queue that has room, in one statement.
--   called by: store::pick::claim           index: instances_pick, then instances_pkey
--   locks: instances, FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id): it waits for nobody.
-- Ranges are (queue, priority, from): `from` is the watermark below which this process has already looked, so that a
-- pick does not wade through the dead entries of all that was claimed before. The first row of the answer has no id:
-- it says what time it is, and when the next row falls due.
create function gen_durable.pick(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_machines text[], p_worker uuid, p_lease_seconds float8, p_suspects int
) returns table (
    id bigint, fsm text, fsm_version int, step text, data text, state text, attempt int,
    claim_epoch bigint, step_seq bigint, visit bigint, queue text, priority smallint, eligible_at timestamptz,
    tenant text, traceparent text, keyed boolean, crash_count smallint, next_due timestamptz, paused text[]
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
begin
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
                  and i.status = 'runnable' and i.crash_count < 2
                  and (i.eligible_at, i.id) > (range.since, range.since_id)
                  and i.eligible_at <= gen_durable.clock()
                  and i.fsm || '/' || i.fsm_version = any (p_machines)
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
        null::timestamptz, null::text[];
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
                where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2
                  and i.eligible_at <= gen_durable.clock()
                  and i.fsm || '/' || i.fsm_version = any (p_machines)
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
        null::timestamptz, null::text[];
    end if;

    -- The time; the next due time of these ranges when everything that was due is taken; and which queues are shut.
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
                  and i.status = 'runnable' and i.crash_count < 2
                  and i.eligible_at > gen_durable.clock() and i.eligible_at < 'infinity'
                order by i.eligible_at
                limit 1
            ) due
        ) end,
        (select array_agg(q.name) from gen_durable.queues q where q.name = any (p_queues) and q.paused_at is not null);
end $$;

-- Write what steps decided: one entry an ending, all in one transaction.
--   called by: store::settle                index: instances_pkey, and nothing else
--   locks: instances by id, in the order of the arrays (the caller sorts them), for at most p_lock_timeout.
-- The guard is (id, claim_epoch, step_seq) and no word about status: the epoch implies executing, and a literal would
-- let the planner walk the index of executing rows. A rise below 0 enters a step: its attempts begin anew. An array may
-- be empty where every value is null (or 0): each one that is not costs a copy of its values. Answers the ids that were
-- written; the others were not ours any more.
create function gen_durable.settle(
    p_ids bigint[], p_epochs bigint[], p_seqs bigint[], p_statuses text[], p_versions int[],
    p_steps text[], p_data text[], p_states text[], p_results text[], p_errors text[],
    p_rises int[], p_delays float8[], p_lock_timeout text
) returns setof bigint
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
    if p_lock_timeout is not null then
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
        visit = case when e.rise < 0 then i.step_seq + 1 else i.visit end,
        -- A run-ahead commit leaves every indexed column alone, so that it stays on its page and off the indexes.
        eligible_at = case when e.status = 'runnable'
                           then gen_durable.clock() + make_interval(secs => coalesce(e.delay, 0)) else i.eligible_at end,
        step_seq = i.step_seq + 1,
        claim_epoch = case when e.status = 'executing' then i.claim_epoch else i.claim_epoch + 1 end,
        crash_count = 0,
        locked_by = case when e.status = 'executing' then i.locked_by end,
        lease_expires_at = case when e.status = 'executing' then i.lease_expires_at end,
        finished_at = case when e.status in ('done', 'failed', 'cancelled') then gen_durable.clock() end,
        updated_at = gen_durable.clock()
    from unnest(p_ids, p_epochs, p_seqs, p_statuses::gen_durable.durable_status[], p_versions, p_steps, p_data, p_states,
                p_results, p_errors, p_rises, p_delays)
        as e(id, epoch, seq, status, version, step, data, state, result, error, rise, delay)
    where i.id = e.id and i.claim_epoch = e.epoch and i.step_seq = e.seq
    returning i.id;
end $$;
