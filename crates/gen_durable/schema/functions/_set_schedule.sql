-- Sets the cycle of a schedule, for an operator. The cycle is in force until the code registers a
-- new one.
--   called by: store::schedule::set      index: schedules_pkey
--   locks: the schedule's row, then its pending timer
create function gen_durable._set_schedule(
    p_name text, p_cycle text, p_missed text, p_anchor timestamptz, p_first timestamptz, p_remaining int, p_by text
) returns text
language plpgsql
as $$
-- planner: pinned
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
        perform gen_durable._insert_next_timer(p_name, p_first, p_remaining);
    end if;
    return 'done';
end $$;
