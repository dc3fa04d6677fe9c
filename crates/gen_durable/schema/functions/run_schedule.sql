-- Adds a manual occurrence of a schedule that is due now, for an operator. Any worker that has
-- registered the schedule fires the occurrence, even while the schedule is paused. Returns the id
-- of the timer.
--   called by: store::schedule::run      index: schedules_pkey
--   locks: the schedule's row
create function gen_durable.run_schedule(p_name text) returns bigint
language plpgsql
as $$
-- planner: pinned
declare
    made bigint;
begin
    perform s.name from gen_durable.schedules s where s.name = p_name for no key update;
    -- If a timer of this schedule with the same due time exists already, this statement inserts no
    -- second timer.
    insert into gen_durable.timers (schedule, due_at, anchor_at, cycle, missed, manual)
    select s.name, gen_durable.clock(), s.anchor_at, s.cycle, s.missed, true from gen_durable.schedules s where s.name = p_name
    on conflict (schedule, due_at) where schedule is not null and state <> 'cancelled' do nothing
    returning id into made;
    return coalesce(made, (select t.id from gen_durable.timers t
                           where t.schedule = p_name and t.due_at = gen_durable.clock() and t.state <> 'cancelled'));
end $$;
