-- Cancels a timer, and so all later occurrences of a repeating timer. Returns 'cancelled',
-- 'too_late', 'no_target', or 'schedule': a regular occurrence of a schedule cannot be cancelled.
--   called by: store::timer::cancel, SQL      index: timers_pkey, instances_pkey
--   locks: the instance that waits, then the timer: it waits for a transaction that fires the timer
create function gen_durable.cancel_timer(p_id bigint) returns text
language plpgsql
as $$
-- planner: pinned
declare
    timer gen_durable.timers;
begin
    select t.* into timer from gen_durable.timers t where t.id = p_id;
    if timer.id is null then
        return 'no_target';
    end if;
    if timer.schedule is not null and not timer.manual then
        return 'schedule';
    end if;
    perform i.id from gen_durable.instances i where i.id = timer.instance_id for no key update;
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.id = p_id and t.state = 'pending';
    return case when found then 'cancelled' else 'too_late' end;
end $$;
