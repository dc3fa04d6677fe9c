-- Delivers signals: [{"id" or "tenant" and "key", "machines", "name", "payload", "dedup"}, ...].
-- Returns one row per signal: its place in p_signals, and 'delivered', 'duplicate', 'no_target' or
-- 'inbox_full'.
--   called by: store::signal::deliver_all, _send_effects, SQL
--   index: instances_pkey, instances_key; signals_dedup
--   locks: the targets by id, all of them before the first delivery: two batches in opposite order
--   do not deadlock
create function gen_durable.signal_all(p_signals jsonb, p_inbox_max int default 1000)
returns table (place int, answer text)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    signal record;
    meant bigint[];
begin
    -- Finds the targets of all signals in one statement.
    meant := array(
        select coalesce((l.value->>'id')::bigint, (
            select k.id from gen_durable.instances k
            where k.tenant = coalesce(l.value->>'tenant', '') and k.held_key = l.value->>'key'))
        from jsonb_array_elements(p_signals) with ordinality l(value, place)
        order by l.place);
    perform i.id from gen_durable.instances i where i.id = any (meant) order by i.id for no key update;
    for signal in
        select l.value, l.place::int as place from jsonb_array_elements(p_signals) with ordinality l(value, place) order by l.place
    loop
        place := signal.place;
        -- Delivers each signal by the id of the locked target, even if the signal names a key. If
        -- the holder of the key has settled since, the signal has no target: to lock a new holder
        -- of the key now would break the order of the locks.
        answer := gen_durable.signal(meant[signal.place], null, null,
            case when signal.value ? 'machines' then array(select jsonb_array_elements_text(signal.value->'machines')) end,
            signal.value->>'name', coalesce(signal.value->'payload', 'null'), signal.value->>'dedup', p_inbox_max);
        return next;
    end loop;
end $$;
