-- Resumes a paused schedule with its next occurrence; occurrences during the pause do not happen.
-- Returns 'changed' if the caller computed the next occurrence from a cycle that is not in force
-- any more: the caller has to compute it again.
--   called by: store::schedule::resume      index: schedules_pkey
--   locks: the schedule's row
create function gen_durable._resume_schedule(p_name text, p_cycle text, p_anchor timestamptz, p_next timestamptz, p_remaining int)
returns text
language plpgsql
as $$
-- planner: pinned
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
        perform gen_durable._insert_next_timer(p_name, p_next, p_remaining);
    end if;
    return 'done';
end $$;
