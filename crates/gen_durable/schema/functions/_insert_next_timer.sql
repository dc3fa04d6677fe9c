-- Replaces the pending regular occurrence of a schedule with the given one.
--   called by: _register_schedule, _set_schedule, _resume_schedule      index: timers_next
--   locks: the timers of the schedule; the caller has locked the schedule's row
create function gen_durable._insert_next_timer(p_name text, p_due timestamptz, p_remaining int) returns void
language plpgsql
as $$
-- planner: pinned
begin
    -- An overdue occurrence of the schedule still happens, as a manual timer that no occurrence
    -- follows, unless its misfire policy is to skip it.
    update gen_durable.timers t set manual = true
    where t.schedule = p_name and t.state = 'pending' and not t.manual and t.due_at <= gen_durable.clock() and t.missed <> 'skip';
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.schedule = p_name and t.state = 'pending' and not t.manual;
    if p_due is not null then
        -- If the schedule already has a timer with this due time, this statement inserts no second
        -- timer: an ended timer stays as it is, and a pending timer becomes the regular occurrence.
        insert into gen_durable.timers as t (schedule, due_at, anchor_at, remaining, cycle, missed)
        select s.name, p_due, s.anchor_at, p_remaining, s.cycle, s.missed from gen_durable.schedules s where s.name = p_name
        on conflict (schedule, due_at) where schedule is not null and state <> 'cancelled' do update set manual = false,
            anchor_at = excluded.anchor_at, remaining = excluded.remaining, cycle = excluded.cycle, missed = excluded.missed
        where t.state = 'pending';
    end if;
    update gen_durable.schedules s set ended_at = case when p_due is null then gen_durable.clock() end where s.name = p_name;
end $$;
