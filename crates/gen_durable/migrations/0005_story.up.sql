-- 0005: the story of an instance: what was committed about it, line by line. Written by the very statement that commits what
-- it tells, guarded by what that statement wrote; read by people.

-- One line an act that changed an instance. The order of a story is (step_seq, claim_epoch): every act that is told raises one
-- of them, so no two lines share a place. No foreign key: it would cost every commit a look at the instance for each line; the
-- trigger below forgets a story with its instance.
create table gen_durable.transitions (
    instance_id  bigint not null,
    step_seq     bigint not null,                    -- the row's, after the act
    claim_epoch  bigint not null,                    -- the row's, after the act
    at           timestamptz not null,
    woken_at     timestamptz,                        -- a wait, a join or being stuck came to its end…
    took_seconds real,                               -- how long the step ran; null: no step ran
    attempt      int not null,                       -- runs of the step before this one that led nowhere
    status       gen_durable.durable_status not null,
    -- What a step decided: next, sleep, wait, spawn, retry, failure, done, stop, outage, stuck.
    -- What was done to it: deadline, reap, cancel, operator_retry.
    outcome      text not null,
    from_step    text not null,
    to_step      text not null,
    error        text,
    cause        text,                               -- …and this ended it: 'signal paid', 'children', 'another build'
    worker       text,                               -- host/pid of who ran the step, or died with it
    primary key (instance_id, step_seq, claim_epoch)
) with (
    -- A wait's line is written again when the wait ends: on its own page, off the index.
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1
);

-- Some that waited were woken: their last line says by what. Only who stands where that line left it, and no line is no
-- matter: nothing is told of a machine that tells nothing.
--   called by: signal, tell_parents, store::queue::retry_stuck      index: instances_pkey, transitions_pkey
--   locks: the lines, of instances that the caller holds
create function gen_durable.tell_woken(p_ids bigint[], p_cause text) returns void
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    woken record;
begin
    -- One by one: a join that was planned while there were no stories would read all of them.
    for woken in
        -- As text: a literal of the status would lead to an index of all that are runnable.
        select i.id, i.step_seq, i.claim_epoch from gen_durable.instances i
        where i.id = any (p_ids) and i.status::text = 'runnable'
    loop
        update gen_durable.transitions t
        set woken_at = gen_durable.clock(), cause = p_cause
        where t.instance_id = woken.id and t.step_seq = woken.step_seq and t.claim_epoch = woken.claim_epoch
          and t.status in ('awaiting_signal', 'awaiting_children', 'stuck') and t.woken_at is null;
    end loop;
end $$;

-- A wait or a join gave up. Told if its beginning was.
--   called by: expire      index: transitions_pkey
--   locks: nothing that exists
create function gen_durable.tell_deadline(p_id bigint, p_seq bigint, p_epoch bigint, p_step text) returns void
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
begin
    insert into gen_durable.transitions
        (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
    select p_id, p_seq, p_epoch, gen_durable.clock(), 0, 'runnable', 'deadline', t.to_step, p_step
    from gen_durable.transitions t
    where t.instance_id = p_id and t.step_seq = p_seq - 1 and t.claim_epoch = p_epoch;
end $$;

-- Somebody did something to these instances: always told, whatever their machine tells of itself.
--   called by: cancel, store::lease::reap, _set_aside_refused      index: instances_pkey
--   locks: nothing that exists; the caller holds the instances
create function gen_durable.tell(p_ids bigint[], p_outcome text, p_worker text default null) returns void
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
begin
    insert into gen_durable.transitions
        (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step, error, worker)
    select i.id, i.step_seq, i.claim_epoch, gen_durable.clock(),
        -- A death counts as a failed run: the line tells of the run that it was.
        i.attempt - (p_outcome = 'reap')::int, i.status, p_outcome, i.step, i.step,
        case when i.finished_at is not null or i.status = 'stuck' then left(i.last_error, 1000) end, p_worker
    from gen_durable.instances i
    where i.id = any (p_ids);
end $$;

-- The endings of `conclude` that are told: by the ids that it wrote, and as it left them.
--   called by: conclude      index: instances_pkey
--   locks: nothing that exists; the caller holds the instances
create function gen_durable.tell_endings(p_endings jsonb, p_written bigint[]) returns void
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if not jsonb_path_exists(p_endings, '$[*].story') then
        return;
    end if;
    insert into gen_durable.transitions
        (instance_id, step_seq, claim_epoch, at, took_seconds, attempt, status, outcome, from_step, to_step, error, worker)
    select i.id, i.step_seq, i.claim_epoch, gen_durable.clock(), (e->'story'->>'took')::real, (e->'story'->>'attempt')::int,
        i.status, e->'story'->>'outcome', e->'story'->>'from', i.step,
        left(coalesce(e->'story'->>'error', e->>'error'), 1000), e->'story'->>'worker'
    from jsonb_array_elements(p_endings) x(e)
    join gen_durable.instances i on i.id = (e->>'id')::bigint
    where e->'story' ? 'from' and i.id = any (p_written);
    perform gen_durable.trim_story((e->>'id')::bigint, (e->>'seq')::bigint + 1)
    from jsonb_array_elements(p_endings) x(e)
    where e ? 'story' and (e->>'seq')::bigint >= 999 and ((e->>'seq')::bigint + 1) % 100 < 2
      and (e->>'id')::bigint = any (p_written);
end $$;

-- A story has a bound: what happened in the last 1,000 commits of its instance. Called with every hundredth commit, and with
-- the one after it, since a deadline may have been the hundredth; what was missed is met within the next thousand. The range
-- has both its ends, so that nobody wades through what was trimmed before.
--   called by: store::settle, tell_endings      index: transitions_pkey
--   locks: the lines, of an instance that the caller holds
create function gen_durable.trim_story(p_id bigint, p_seq bigint) returns void
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
begin
    delete from gen_durable.transitions t
    where t.instance_id = p_id and t.step_seq > p_seq - 2000 and t.step_seq <= p_seq - 1000;
end $$;

-- Returns a page of the history of one instance, the newest first, from before (p_seq, p_epoch). Without statistics the planner takes an
-- instance for short, and would read and sort all of its history for one page.
--   called by: store::story::Inspect::story      index: transitions_pkey, backwards
--   locks: nothing
create function gen_durable._history_page(p_id bigint, p_seq bigint, p_epoch bigint, p_limit int)
returns setof gen_durable.transitions
language plpgsql stable
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
    return query
    select t.* from gen_durable.transitions t
    where t.instance_id = p_id and (t.step_seq, t.claim_epoch) < (p_seq, p_epoch)
    order by t.step_seq desc, t.claim_epoch desc
    limit p_limit;
end $$;

-- Deletes history and signals together with their instances, whatever deletes those: the collector, or SQL by hand.
--   called by: triggers      index: transitions_pkey, signals_inbox, signals_dedup
--   locks: the rows that it deletes, of instances that are gone
create function gen_durable._delete_dependents() returns trigger
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if tg_op = 'TRUNCATE' then
        truncate gen_durable.transitions, gen_durable.signals;
    else
        delete from gen_durable.transitions t using gone where t.instance_id = gone.id;
        delete from gen_durable.signals s using gone where s.target_id = gone.id and s.consumed_at is null;
        delete from gen_durable.signals s using gone where s.target_id = gone.id and s.dedup_key is not null;
    end if;
    return null;
end $$;

create trigger instances_delete_dependents after delete on gen_durable.instances
    referencing old table as gone for each statement execute function gen_durable._delete_dependents();
create trigger instances_truncate_dependents after truncate on gen_durable.instances
    for each statement execute function gen_durable._delete_dependents();

-- Deletes settled instances past their retention: at most about p_limit, a page of each range (queue, status) that has any.
-- Seconds; null: never. A range is read from its cursor on. When it is read to its end, and p_pause seconds and a second for each 10,000
-- rows examined (at most an hour) have passed since the pass began, the next pass begins at the start of the range: it finds what was
-- locked or still needed before.
--   called by: store::collect::collect      index: instances_finished, instances_pkey, collect_cursors_pkey
--   locks: the cursors, one range after the other; instances. It waits for neither: it skips what is locked.
-- Returns how many were deleted, and whether a page was full.
create function gen_durable.collect(
    p_retention float8, p_failed_retention float8, p_pause float8, p_limit int
) returns table (deleted bigint, more boolean)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    range record;
    cur record;
    page_size int;
    cutoff timestamptz;
    times timestamptz[];
    ids bigint[];
    read_to timestamptz;
    gone bigint;
    gone_at bigint;
    total bigint := 0;
    is_full boolean := false;
begin
    for range in
        -- Backwards: the front of a range is full of entries of instances that were deleted before.
        with recursive ranges(queue, status) as (
            (select i.queue, i.status from gen_durable.instances i
             where i.finished_at is not null order by i.queue desc, i.status desc limit 1)
            union all
            select earlier.queue, earlier.status from ranges r
            cross join lateral (
                select i.queue, i.status from gen_durable.instances i
                where i.finished_at is not null and (i.queue, i.status) < (r.queue, r.status)
                order by i.queue desc, i.status desc limit 1
            ) earlier
        )
        select r.queue, r.status, count(*) over ()::int as ranges,
            case when r.status = 'done' then coalesce(q.retention, p_retention)
                 else coalesce(q.failed_retention, p_failed_retention) end as seconds
        from ranges r
        left join gen_durable.queues q on q.name = r.queue
    loop
        continue when range.seconds is null or range.seconds = 'infinity';
        insert into gen_durable.collect_cursors (queue, status) values (range.queue, range.status) on conflict do nothing;
        select * into cur from gen_durable.collect_cursors c
        where c.queue = range.queue and c.status = range.status
        for update skip locked;
        continue when not found;
        page_size := greatest(p_limit / range.ranges, 50);
        cutoff := gen_durable.clock() - make_interval(secs => range.seconds);
        select array_agg(p.finished_at),
            -- One that blocks its lane still has it, and so does a cancelled one whose step still runs; one with an arrival number
            -- stands for a lane or key that must be looked at.
            array_agg(p.id) filter (where not p.in_lane and p.arrival is null and p.locked_by is null and parent.reads is null)
        into times, ids
        from (
            select i.id, i.finished_at, i.in_lane, i.arrival, i.locked_by, i.parent_id, i.parent_generation
            from gen_durable.instances i
            where i.queue = range.queue and i.status = range.status and i.finished_at >= cur.at and i.finished_at < cutoff
            order by i.finished_at
            offset cur.kept_at limit page_size
        ) p
        left join lateral (
            -- A live parent may still read what the children of its last spawn settled with.
            select true as reads from gen_durable.instances r
            where r.id = p.parent_id and r.finished_at is null and r.join_generation = p.parent_generation
            offset 0
        ) parent on true;
        -- Under the lock once more: an operator may have retried one. As an expression, or the index of settled rows would serve it.
        ids := array(
            select i.id from gen_durable.instances i
            where i.id = any (ids) and coalesce(i.finished_at < cutoff, false) and not i.in_lane and i.arrival is null
              and i.locked_by is null
            for update skip locked);
        read_to := (select max(t) from unnest(times) t);
        with deleted as (
            delete from gen_durable.instances i where i.id = any (ids) returning i.finished_at
        )
        select count(*), count(*) filter (where d.finished_at = read_to) into gone, gone_at from deleted d;
        total := total + gone;
        if times is not null then
            update gen_durable.collect_cursors c
            set at = read_to, examined = c.examined + cardinality(times),
                kept_at = case when c.at = read_to then c.kept_at else 0 end
                          + (select count(*) from unnest(times) t where t = read_to) - gone_at
            where c.queue = range.queue and c.status = range.status;
        end if;
        if cardinality(times) = page_size then
            is_full := true;
        elsif gen_durable.clock() >= cur.pass_began_at
                + make_interval(secs => p_pause + least(3600, (cur.examined + coalesce(cardinality(times), 0)) / 10000)) then
            update gen_durable.collect_cursors c
            set at = '-infinity', kept_at = 0, examined = 0, pass_began_at = gen_durable.clock()
            where c.queue = range.queue and c.status = range.status;
        end if;
    end loop;
    return query select total, is_full;
end $$;
