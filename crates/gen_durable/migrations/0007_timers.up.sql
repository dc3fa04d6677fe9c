-- 0007: timers and schedules. The table is the truth: a timer is fired by whoever holds its row, when the database's clock has
-- reached its due time, and what it starts, what comes after it and that it has fired are one commit.

-- A named cycle that starts instances. What the code says stands beside what is in force: an operator may have changed it
-- since, and the code's word counts again when the code changes.
create table gen_durable.schedules (
    name          text primary key,
    cycle         text not null,
    missed        text not null,
    code_cycle    text not null,
    code_missed   text not null,
    code_replaced text[] not null default '{}',      -- what the code said before, the latest first: an older build may still say it
    challenged_at timestamptz,                       -- since when an older build says so, and no build says what is in force
    anchor_at     timestamptz not null,              -- where a cycle without a start of its own begins
    registered_at timestamptz not null default gen_durable.clock(),
    set_at        timestamptz,                       -- an operator has set the cycle
    set_by        text,
    paused_at     timestamptz,
    paused_by     text,
    ended_at      timestamptz,                       -- its cycle has no further occurrence
    remaining     int,                               -- while it is paused: how many may follow the next one
    last_error    text,                              -- why its last occurrence could not be started
    constraint schedules_names_have_a_length check (octet_length(name) between 1 and 200 and octet_length(cycle) <= 1000),
    constraint schedules_have_a_policy check (missed in ('all', 'latest', 'skip') and code_missed in ('all', 'latest', 'skip'))
);

-- An occurrence is a row: of a schedule, or beside the wait of an instance. It is fired, missed or cancelled once.
create table gen_durable.timers (
    id          bigint generated always as identity primary key,
    due_at      timestamptz not null,
    armed_at    timestamptz not null default gen_durable.clock(),
    anchor_at   timestamptz not null,
    ended_at    timestamptz,
    instance_id bigint,                              -- beside whose wait…
    await_seq   bigint,                              -- …and which one: its step_seq while it waits
    started_id  bigint,                              -- what it started
    remaining   int,                                 -- how many may follow; null: without end
    missed_count int not null default 0,             -- missed ones that stand behind it
    by_hand     boolean not null default false,
    state       text not null default 'pending',
    missed      text not null,
    cycle       text not null,
    schedule    text,
    birth       jsonb,                               -- what is enqueued, unless a schedule makes it
    constraint timers_belong_to_one check ((instance_id is null) <> (schedule is null)),
    constraint timers_beside_a_wait_are_whole check (instance_id is null or (await_seq is not null and birth is not null)),
    constraint timers_have_a_state check (state in ('pending', 'fired', 'missed', 'cancelled')),
    constraint timers_end_once check ((state = 'pending') = (ended_at is null)),
    constraint timers_counts_are_not_negative check (remaining >= 0 and missed_count >= 0)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

-- What falls due next.
create index timers_due on gen_durable.timers (due_at, id) where state = 'pending';
-- The timers of one wait, when it ends.
create index timers_beside on gen_durable.timers (instance_id) where state = 'pending' and instance_id is not null;
-- A schedule has one occurrence ahead of it, and an occurrence never happens twice.
create unique index timers_ahead on gen_durable.timers (schedule) where state = 'pending' and schedule is not null and not by_hand;
create unique index timers_once on gen_durable.timers (schedule, due_at) where schedule is not null and state <> 'cancelled';
-- The collector's.
create index timers_ended on gen_durable.timers (ended_at) where ended_at is not null;

-- Who can start what: a schedule that no live worker has registered is shown and does not happen.
alter table gen_durable.workers add column schedules text[] not null default '{}';

-- Whatever ends a wait (a letter, the last child, a deadline, a cancel, an operator) ends what repeats beside it, in its commit.
--   called by: the trigger below      index: timers_beside
--   locks: the instance's pending timers, after the instance's own row; whoever fires one holds that row first
create function gen_durable.end_repeats() returns trigger
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
begin
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.instance_id = new.id and t.state = 'pending';
    return null;
end $$;
create trigger instances_end_repeats after update of status on gen_durable.instances
    for each row
    when (old.repeats and old.status in ('awaiting_signal', 'awaiting_children') and new.status <> old.status)
    execute function gen_durable.end_repeats();

-- Arm what repeats beside a wait. When the wait was satisfied at once, nothing is.
--   called by: conclude      index: instances_pkey
--   locks: the instance's row, which its commit holds already
create function gen_durable.arm(p_instance bigint, p_repeats jsonb) returns void
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
    insert into gen_durable.timers (instance_id, await_seq, due_at, anchor_at, remaining, cycle, missed, birth)
    select i.id, i.step_seq, greatest((r->>'due')::timestamptz, gen_durable.clock()), (r->>'anchor')::timestamptz,
        (r->>'remaining')::int, r->>'cycle', r->>'missed', r->'birth'
    from gen_durable.instances i
    cross join jsonb_array_elements(p_repeats) r
    where i.id = p_instance and i.status in ('awaiting_signal', 'awaiting_children');
    if found then
        update gen_durable.instances i set repeats = true where i.id = p_instance and not i.repeats;
    end if;
end $$;

-- When timers and deadlines fall due, from a little before now up to a horizon: what a process keeps in mind. And what time it is.
--   called by: store::timer::upcoming      index: timers_due, instances_deadlines
--   locks: nothing
create function gen_durable.upcoming(p_since float8, p_horizon float8, p_limit int)
returns table (due_at timestamptz, is_timer boolean, now timestamptz)
language plpgsql stable
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select null::timestamptz, false, gen_durable.clock()
    union all
    (select i.deadline_at, false, null::timestamptz from gen_durable.instances i
     where i.deadline_at > gen_durable.clock() - make_interval(secs => p_since) and i.deadline_at <= gen_durable.clock() + make_interval(secs => p_horizon)
     order by i.deadline_at limit p_limit)
    union all
    (select t.due_at, true, null::timestamptz from gen_durable.timers t
     where t.state = 'pending' and t.due_at > gen_durable.clock() - make_interval(secs => p_since)
       and t.due_at <= gen_durable.clock() + make_interval(secs => p_horizon)
     order by t.due_at limit p_limit);
end $$;

-- Timers that are due, for whoever can fire them: all beside waits, and those of the schedules that it knows.
--   called by: store::timer::due      index: timers_due
--   locks: nothing: the row decides when it is fired
create function gen_durable.due_timers(
    p_limit int, p_since float8, p_until float8, p_from timestamptz, p_schedules text[], p_except bigint[]
) returns table (
    id bigint, due_at timestamptz, anchor_at timestamptz, remaining int, missed_count int, by_hand boolean, cycle text,
    missed text, schedule text, now timestamptz
)
language plpgsql stable
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select t.id, t.due_at, t.anchor_at, t.remaining, t.missed_count, t.by_hand, t.cycle, t.missed, t.schedule, gen_durable.clock()
    from gen_durable.timers t
    where t.state = 'pending' and t.due_at <= gen_durable.clock() - make_interval(secs => p_until)
      and t.due_at >= greatest(p_from, case when p_since < 'infinity' then gen_durable.clock() - make_interval(secs => p_since) end)
      and (t.schedule is null or t.schedule = any (p_schedules))
      and t.id <> all (p_except)
    order by t.due_at, t.id
    limit p_limit;
    return query
    select null::bigint, null::timestamptz, null::timestamptz, null::int, null::int, null::boolean, null, null, null,
        gen_durable.clock();
end $$;

-- Fire timers: each that is still pending and due by this clock. It starts what it starts, the next occurrence is written, and
-- it has fired: one commit. An occurrence that was missed only makes way for the next.
--   called by: store::timer::fire      index: timers_pkey, schedules_pkey, instances_pkey, instances_key
--   locks: the schedule's row, or that of the instance whose wait it stands beside; then the timer; none of them waited for.
--          What takes a key waits for whoever is about to take the same, for at most p_lock_timeout
-- Answers one row a timer: 'fired', 'missed', 'cancelled' (the wait was over), or 'held' (somebody is at it: look again).
create function gen_durable.fire(p_entries jsonb, p_lock_timeout text)
returns table (
    id bigint, answer text, late float8, started_id bigint, queue text, priority smallint, eligible_at timestamptz,
    next_due timestamptz
)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    entry jsonb;
    timer gen_durable.timers;
    owner record;
    made record;
    lives boolean;
    birth jsonb;
    begun bigint;
begin
    if p_lock_timeout is not null then
        perform set_config('lock_timeout', p_lock_timeout, true);
    end if;
    for entry in select e from jsonb_array_elements(p_entries) with ordinality x(e, o) order by o loop
        id := (entry->>'id')::bigint;
        select t.* into timer from gen_durable.timers t where t.id = (entry->>'id')::bigint;
        continue when timer.id is null or timer.state <> 'pending';
        answer := 'held'; late := null; started_id := null; queue := null; priority := null; eligible_at := null; next_due := null;
        -- Whoever ends a wait, or changes a schedule, holds this row first: it sees every occurrence that was written before,
        -- and none is written after.
        if timer.schedule is null then
            select i.status, i.step_seq into owner from gen_durable.instances i where i.id = timer.instance_id
            for no key update skip locked;
            if not found and exists (select from gen_durable.instances i where i.id = timer.instance_id) then
                return next;
                continue;
            end if;
            lives := coalesce(owner.status in ('awaiting_signal', 'awaiting_children') and owner.step_seq = timer.await_seq, false);
            birth := timer.birth;
        else
            select s.paused_at into owner from gen_durable.schedules s where s.name = timer.schedule
            for no key update skip locked;
            if not found then
                return next;
                continue;
            end if;
            lives := owner.paused_at is null or timer.by_hand;
            birth := entry->'birth';
        end if;
        select t.* into timer from gen_durable.timers t
        where t.id = (entry->>'id')::bigint and t.state = 'pending' and t.due_at = (entry->>'due')::timestamptz
          and t.due_at <= gen_durable.clock()
        for update skip locked;
        if not found then
            return next;
            continue;
        end if;
        late := extract(epoch from gen_durable.clock() - timer.due_at);
        if not lives then
            update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock() where t.id = timer.id;
            answer := 'cancelled';
            return next;
            continue;
        end if;
        if (entry->>'happens')::boolean then
            select m.id, m.eligible_at into made from gen_durable.enqueue_all(jsonb_build_array(birth)) m;
            begun := made.id; started_id := made.id; eligible_at := made.eligible_at;
            queue := coalesce(birth->>'queue', 'default'); priority := coalesce((birth->>'priority')::smallint, 0::smallint);
            answer := 'fired';
        else
            begun := null;
            answer := 'missed';
        end if;
        update gen_durable.timers t set state = answer, ended_at = gen_durable.clock(), started_id = begun where t.id = timer.id;
        if entry ? 'next' and not timer.by_hand then -- A change of the cycle has put the next one there.
            next_due := (entry->>'next')::timestamptz;
            insert into gen_durable.timers
                (due_at, anchor_at, instance_id, await_seq, remaining, missed_count, cycle, missed, schedule, birth)
            values (next_due, timer.anchor_at, timer.instance_id, timer.await_seq, (entry->>'remaining')::int,
                coalesce((entry->>'missed')::int, 0), timer.cycle, timer.missed, timer.schedule, timer.birth);
        end if;
        if timer.schedule is not null then
            update gen_durable.schedules s
            set last_error = null, ended_at = case when timer.by_hand or entry ? 'next' then s.ended_at else gen_durable.clock() end
            where s.name = timer.schedule
              and (s.last_error is not null or not (timer.by_hand or entry ? 'next'));
        end if;
        return next;
    end loop;
end $$;

-- Cancel one timer; what would follow it does not either. Answers 'cancelled', 'too_late', 'no_target' or 'schedule'.
--   called by: store::timer::cancel, SQL      index: timers_pkey, instances_pkey
--   locks: the instance beside whose wait it stands, then the timer: it waits for whoever fires it
create function gen_durable.cancel_timer(p_id bigint) returns text
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    timer gen_durable.timers;
begin
    select t.* into timer from gen_durable.timers t where t.id = p_id;
    if timer.id is null then
        return 'no_target';
    end if;
    if timer.schedule is not null and not timer.by_hand then
        return 'schedule';
    end if;
    perform i.id from gen_durable.instances i where i.id = timer.instance_id for no key update;
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.id = p_id and t.state = 'pending';
    return case when found then 'cancelled' else 'too_late' end;
end $$;

-- Put another occurrence ahead of a schedule, in place of the one that is there.
--   called by: register_schedule, set_schedule, resume_schedule      index: timers_ahead
--   locks: that occurrence, after the schedule's row, which the caller holds
create function gen_durable.put_ahead(p_name text, p_due timestamptz, p_remaining int) returns void
language plpgsql
set search_path = gen_durable, pg_temp set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
begin
    -- An occurrence that is overdue still happens, once and by itself, unless its policy skips it.
    update gen_durable.timers t set by_hand = true
    where t.schedule = p_name and t.state = 'pending' and not t.by_hand and t.due_at <= gen_durable.clock() and t.missed <> 'skip';
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.schedule = p_name and t.state = 'pending' and not t.by_hand;
    if p_due is not null then
        -- An occurrence that has happened does not happen again; one that is overdue at this very time is the one ahead.
        insert into gen_durable.timers as t (schedule, due_at, anchor_at, remaining, cycle, missed)
        select s.name, p_due, s.anchor_at, p_remaining, s.cycle, s.missed from gen_durable.schedules s where s.name = p_name
        on conflict (schedule, due_at) where schedule is not null and state <> 'cancelled' do update set by_hand = false,
            anchor_at = excluded.anchor_at, remaining = excluded.remaining, cycle = excluded.cycle, missed = excluded.missed
        where t.state = 'pending';
    end if;
    update gen_durable.schedules s set ended_at = case when p_due is null then gen_durable.clock() end where s.name = p_name;
end $$;

-- Registers what the code says of a schedule, when an engine starts and regularly after that. If the code says something new, that
-- comes into force. If it says what is in force, nothing changes, an operator's cycle included. If it says what newer code has replaced,
-- it is an older build ('older'): it changes nothing, unless no build has confirmed the newer one for five minutes (a rollback).
-- 'replaced': the new cycle took the place of an operator's.
--   called by: store::schedule::register      index: schedules_pkey
--   locks: the schedule's row, then its occurrence; nothing if all is as it was
create function gen_durable.register_schedule(
    p_name text, p_cycle text, p_missed text, p_anchor timestamptz, p_first timestamptz, p_remaining int
) returns text
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    known gen_durable.schedules;
    said text := p_cycle || ' ' || p_missed;
    was text;
begin
    insert into gen_durable.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at)
    values (p_name, p_cycle, p_missed, p_cycle, p_missed, p_anchor)
    on conflict (name) do nothing;
    if found then
        perform gen_durable.put_ahead(p_name, p_first, p_remaining);
        return 'new';
    end if;
    if exists (select from gen_durable.schedules s where s.name = p_name and s.code_cycle = p_cycle and s.code_missed = p_missed
               and s.challenged_at is null) then
        return 'known';
    end if;
    select s.* into known from gen_durable.schedules s where s.name = p_name for no key update;
    was := known.code_cycle || ' ' || known.code_missed;
    if said = was then
        update gen_durable.schedules s set challenged_at = null where s.name = p_name;
        return 'known';
    elsif said = any (known.code_replaced)
          and coalesce(known.challenged_at, gen_durable.clock()) > gen_durable.clock() - interval '5 minutes' then
        update gen_durable.schedules s set challenged_at = gen_durable.clock() where s.name = p_name and s.challenged_at is null;
        return 'older';
    end if;
    update gen_durable.schedules s
    set missed = p_missed, code_cycle = p_cycle, code_missed = p_missed, challenged_at = null,
        code_replaced = (was || array_remove(s.code_replaced, said))[:50]
    where s.name = p_name;
    if known.code_cycle = p_cycle then
        -- Only the policy is another: the cycle goes on from its anchor.
        update gen_durable.timers t set missed = p_missed where t.schedule = p_name and t.state = 'pending' and not t.by_hand;
        return 'changed';
    end if;
    update gen_durable.schedules s
    set cycle = p_cycle, anchor_at = p_anchor, set_at = null, set_by = null, remaining = p_remaining, ended_at = null
    where s.name = p_name;
    if known.paused_at is null then
        perform gen_durable.put_ahead(p_name, p_first, p_remaining);
    end if;
    return case when known.set_at is null then 'changed' else 'replaced' end;
end $$;

-- An operator sets the cycle: it holds until the code says something new.
--   called by: store::schedule::set      index: schedules_pkey
--   locks: the schedule's row, then its occurrence
create function gen_durable.set_schedule(
    p_name text, p_cycle text, p_missed text, p_anchor timestamptz, p_first timestamptz, p_remaining int, p_by text
) returns text
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    known gen_durable.schedules;
begin
    select s.* into known from gen_durable.schedules s where s.name = p_name for no key update;
    if known.name is null then
        return 'no_target';
    end if;
    update gen_durable.schedules s
    set cycle = p_cycle, missed = coalesce(p_missed, s.missed), anchor_at = p_anchor, set_at = gen_durable.clock(), set_by = p_by,
        remaining = p_remaining, ended_at = null
    where s.name = p_name;
    if known.paused_at is null then
        perform gen_durable.put_ahead(p_name, p_first, p_remaining);
    end if;
    return 'done';
end $$;

-- Nothing of this schedule happens until it is resumed.
--   called by: store::schedule::pause      index: schedules_pkey, timers_ahead
--   locks: the schedule's row, then its occurrence
create function gen_durable.pause_schedule(p_name text, p_by text) returns text
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    known gen_durable.schedules;
begin
    select s.* into known from gen_durable.schedules s where s.name = p_name for no key update;
    if known.name is null then
        return 'no_target';
    elsif known.paused_at is not null then
        return 'too_late';
    end if;
    update gen_durable.schedules s
    set paused_at = gen_durable.clock(), paused_by = p_by,
        remaining = (select t.remaining from gen_durable.timers t
                     where t.schedule = p_name and t.state = 'pending' and not t.by_hand)
    where s.name = p_name;
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.schedule = p_name and t.state = 'pending' and not t.by_hand;
    return 'done';
end $$;

-- It goes on with its next occurrence; what fell into the pause does not happen.
--   called by: store::schedule::resume      index: schedules_pkey
--   locks: the schedule's row
-- 'changed': the cycle is not the one that the next occurrence was reckoned from; look again.
create function gen_durable.resume_schedule(p_name text, p_cycle text, p_anchor timestamptz, p_next timestamptz, p_remaining int)
returns text
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    known gen_durable.schedules;
begin
    select s.* into known from gen_durable.schedules s where s.name = p_name for no key update;
    if known.name is null then
        return 'no_target';
    elsif known.paused_at is null then
        return 'too_late';
    elsif known.cycle <> p_cycle or known.anchor_at <> p_anchor then
        return 'changed';
    end if;
    update gen_durable.schedules s set paused_at = null, paused_by = null where s.name = p_name;
    if known.ended_at is null then
        perform gen_durable.put_ahead(p_name, p_next, p_remaining);
    end if;
    return 'done';
end $$;

-- One more occurrence, now, by hand: any worker that registers the schedule fires it, also while it is paused.
--   called by: store::schedule::run      index: schedules_pkey
--   locks: the schedule's row
create function gen_durable.run_schedule(p_name text) returns bigint
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    made bigint;
begin
    perform s.name from gen_durable.schedules s where s.name = p_name for no key update;
    -- Twice within a microsecond, or at the very moment of a regular one, it is that one.
    insert into gen_durable.timers (schedule, due_at, anchor_at, cycle, missed, by_hand)
    select s.name, gen_durable.clock(), s.anchor_at, s.cycle, s.missed, true from gen_durable.schedules s where s.name = p_name
    on conflict (schedule, due_at) where schedule is not null and state <> 'cancelled' do nothing
    returning id into made;
    return coalesce(made, (select t.id from gen_durable.timers t
                           where t.schedule = p_name and t.due_at = gen_durable.clock() and t.state <> 'cancelled'));
end $$;

-- Waits and joins whose time has come give up, and go where they said.
--   called by: store::timer::expire      index: instances_deadlines
--   locks: the waiting rows, skipping what somebody holds: a signal that is being delivered comes first
-- From so many seconds before now up to so many before now: the front of the index is full of what has been, and what is
-- long overdue is worked off at a rate of its own. The last row has no id: it says what time it is.
create function gen_durable.expire(
    p_limit int, p_since float8 default 'infinity', p_until float8 default 0, p_from timestamptz default '-infinity'
) returns table (id bigint, queue text, priority smallint, due_at timestamptz, now timestamptz)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    expired record;
begin
    for expired in
    with due as materialized (
        select i.id, i.deadline_at from gen_durable.instances i
        where i.deadline_at <= gen_durable.clock() - make_interval(secs => p_until)
          and i.deadline_at >= greatest(p_from, case when p_since < 'infinity' then gen_durable.clock() - make_interval(secs => p_since) end)
        order by i.deadline_at
        limit p_limit
        for no key update skip locked
    )
    update gen_durable.instances i
    set status = 'runnable', step = i.deadline_step, data = i.deadline_data, awaits = null, attempt = 0, failures = 0,
        step_seq = i.step_seq + 1, visit = i.step_seq + 1, eligible_at = gen_durable.clock(),
        deadline_at = null, deadline_step = null, deadline_data = null, updated_at = gen_durable.clock(),
        held_back = i.partition_key is not null,
        arrival = case when i.partition_key is not null then nextval('gen_durable.arrivals') else i.arrival end
    from due
    -- As text: a literal of the status would lead to an index of all that wait.
    where i.id = due.id and i.status::text in ('awaiting_signal', 'awaiting_children')
    returning i.id, i.queue, i.priority, due.deadline_at, i.step_seq, i.claim_epoch, i.step
    loop
        perform gen_durable.tell_deadline(expired.id, expired.step_seq, expired.claim_epoch, expired.step);
        return query select expired.id, expired.queue, expired.priority, expired.deadline_at, gen_durable.clock();
    end loop;
    return query select null::bigint, null::text, null::smallint, null::timestamptz, gen_durable.clock();
end $$;
