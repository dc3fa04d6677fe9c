-- Pauses a schedule: no regular occurrence happens until an operator resumes the schedule.
--   called by: store::schedule::pause      index: schedules_pkey, timers_next
--   locks: the schedule's row, then its pending timer
create function gen_durable.pause_schedule(p_name text, p_by text) returns text
language plpgsql
as $$
-- planner: pinned
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
                     where t.schedule = p_name and t.state = 'pending' and not t.manual)
    where s.name = p_name;
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.schedule = p_name and t.state = 'pending' and not t.manual;
    return 'done';
end $$;
