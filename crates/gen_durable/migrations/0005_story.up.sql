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
    attempt      int not null,                       -- failed runs of the step before this one
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
--   called by: cancel, store::lease::reap      index: instances_pkey
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
        case when i.finished_at is not null then left(i.last_error, 1000) end, p_worker
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

-- A story ends with its instance, whoever takes that away: the collector, or somebody by hand.
--   called by: triggers      index: transitions_pkey
--   locks: the lines, of instances that are gone
create function gen_durable.forget_stories() returns trigger
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if tg_op = 'TRUNCATE' then
        truncate gen_durable.transitions;
    else
        delete from gen_durable.transitions t using gone where t.instance_id = gone.id;
    end if;
    return null;
end $$;

create trigger instances_forget after delete on gen_durable.instances
    referencing old table as gone for each statement execute function gen_durable.forget_stories();
create trigger instances_forget_all after truncate on gen_durable.instances
    for each statement execute function gen_durable.forget_stories();
