-- Registers the cycle that the code has for a schedule. An engine calls it when it starts and
-- regularly after that. A new cycle comes into force ('new', 'changed', or 'replaced' if an
-- operator had set the cycle). The cycle that the code registered last changes nothing, even if an
-- operator has set another ('known'). A cycle that newer code has replaced comes from an older
-- build and changes nothing ('older'), unless no build has registered the newer cycle for five
-- minutes: then the deployment was rolled back.
--   called by: store::schedule::register      index: schedules_pkey
--   locks: the schedule's row, then its pending timer; nothing if nothing changes
create function gen_durable._register_schedule(
    p_name text, p_cycle text, p_missed text, p_anchor timestamptz, p_first timestamptz, p_remaining int
) returns text
language plpgsql
as $$
-- planner: pinned
declare
    known gen_durable.schedules;
    said text := p_cycle || ' ' || p_missed;
    was text;
begin
    insert into gen_durable.schedules (name, cycle, missed, code_cycle, code_missed, anchor_at)
    values (p_name, p_cycle, p_missed, p_cycle, p_missed, p_anchor)
    on conflict (name) do nothing;
    if found then
        perform gen_durable._insert_next_timer(p_name, p_first, p_remaining);
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
        -- Only the misfire policy of the schedule has changed: the cycle continues from its anchor.
        update gen_durable.timers t set missed = p_missed where t.schedule = p_name and t.state = 'pending' and not t.manual;
        return 'changed';
    end if;
    update gen_durable.schedules s
    set cycle = p_cycle, anchor_at = p_anchor, set_at = null, set_by = null, remaining = p_remaining, ended_at = null
    where s.name = p_name;
    if known.paused_at is null then
        perform gen_durable._insert_next_timer(p_name, p_first, p_remaining);
    end if;
    return case when known.set_at is null then 'changed' else 'replaced' end;
end $$;
