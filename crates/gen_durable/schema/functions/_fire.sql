-- Fires timers that are still pending and due by the clock of the database. One transaction inserts
-- the started instance and the next occurrence, and ends the timer. A missed occurrence starts no
-- instance; this function then only ends the timer and inserts the next occurrence.
--   called by: store::timer::fire
--   index: timers_pkey, schedules_pkey, instances_pkey, instances_key
--   locks: the schedule's row, or the row of the instance that waits; then the timer. It skips
--   locked rows. The insert of an instance with a key waits for a transaction that has inserted the
--   same key, for at most p_lock_timeout.
-- Returns one row per timer: 'fired', 'missed', 'cancelled' (the wait has ended, or the schedule is
-- paused), or 'held' (another transaction has locked a row: try again).
create function gen_durable._fire(p_entries jsonb, p_lock_timeout text)
returns table (
    id bigint, answer text, late float8, started_id bigint, queue text, priority smallint, eligible_at timestamptz,
    next_due timestamptz
)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    entry jsonb;
    timer gen_durable.timers;
    owner record;
    made record;
    lives boolean;
    new_instance jsonb;
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
        -- Locks the row of the waiting instance or of the schedule first, as a transaction does
        -- that ends the wait or changes the schedule. So that transaction sees every occurrence
        -- that was inserted before it, and no occurrence is inserted after it.
        if timer.schedule is null then
            select i.status, i.step_seq into owner from gen_durable.instances i where i.id = timer.instance_id
            for no key update skip locked;
            if not found and exists (select from gen_durable.instances i where i.id = timer.instance_id) then
                return next;
                continue;
            end if;
            lives := coalesce(owner.status in ('awaiting_signal', 'awaiting_children') and owner.step_seq = timer.await_seq, false);
            new_instance := timer.new_instance;
        else
            select s.paused_at into owner from gen_durable.schedules s where s.name = timer.schedule
            for no key update skip locked;
            if not found then
                return next;
                continue;
            end if;
            lives := owner.paused_at is null or timer.manual;
            new_instance := entry->'new_instance';
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
            select m.id, m.eligible_at into made from gen_durable.enqueue_all(jsonb_build_array(new_instance)) m;
            begun := made.id; started_id := made.id; eligible_at := made.eligible_at;
            queue := coalesce(new_instance->>'queue', 'default'); priority := coalesce((new_instance->>'priority')::smallint, 0::smallint);
            answer := 'fired';
        else
            begun := null;
            answer := 'missed';
        end if;
        update gen_durable.timers t set state = answer, ended_at = gen_durable.clock(), started_id = begun where t.id = timer.id;
        -- A manual timer has no next occurrence: the change of the cycle that makes an overdue
        -- timer manual has already inserted the next occurrence.
        if entry ? 'next' and not timer.manual then
            next_due := (entry->>'next')::timestamptz;
            insert into gen_durable.timers
                (due_at, anchor_at, instance_id, await_seq, remaining, missed_count, cycle, missed, schedule, new_instance)
            values (next_due, timer.anchor_at, timer.instance_id, timer.await_seq, (entry->>'remaining')::int,
                coalesce((entry->>'missed')::int, 0), timer.cycle, timer.missed, timer.schedule, timer.new_instance);
        end if;
        if timer.schedule is not null then
            update gen_durable.schedules s
            set last_error = null, ended_at = case when timer.manual or entry ? 'next' then s.ended_at else gen_durable.clock() end
            where s.name = timer.schedule
              and (s.last_error is not null or not (timer.manual or entry ? 'next'));
        end if;
        return next;
    end loop;
end $$;
