-- Appends events to the logs of their tenants, in the order of the arrays. An array may be empty if
-- every value is the default.
--   called by: store::events, _record_result_events
--   index: event_heads_pkey, events_log, events_unplaced, event_scans_pkey
--   locks: heads of logs (rows of event_heads), by tenant. With p_heads = 'wait' it waits for
--   locked heads. With 'skip' it skips locked heads, and the events of those logs get their
--   position later. With 'none' it locks no head and all events get their position later: for a
--   transaction that the caller ends.
-- Returns a row per event, in the order of the arrays: the position, if it is assigned already, and
-- the arrival number.
create function gen_durable._append(
    p_tenants text[], p_names text[], p_versions int[], p_payloads text[], p_headers text[],
    p_instances bigint[], p_steps text[], p_heads text
) returns table (tenant text, pos bigint, arrival_no bigint)
language plpgsql
as $$
-- planner: pinned, generic
#variable_conflict use_column
declare
    wanted text[];
    held text[] := '{}';
begin
    if p_heads <> 'none' then
        -- Ensures that the events are durable before anything that depends on them begins, even if
        -- the role or the database turns synchronous_commit off.
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'on', true);
        end if;
        wanted := array(select distinct t from unnest(p_tenants) t order by t);
        insert into gen_durable.event_heads (tenant)
        select missing.tenant from unnest(wanted) as missing(tenant)
        where not exists (select from gen_durable.event_heads h where h.tenant = missing.tenant)
        order by missing.tenant
        on conflict do nothing;
        if p_heads = 'wait' then
            held := array(
                select h.tenant from gen_durable.event_heads h
                where h.tenant = any (wanted) order by h.tenant for no key update);
        else
            held := array(
                select h.tenant from gen_durable.event_heads h
                where h.tenant = any (wanted) order by h.tenant for no key update skip locked);
        end if;
        if cardinality(held) > 0 then
            perform gen_durable._place_events_locked(held, false);
        end if;
    end if;
    -- The insert of the events is a statement of its own, so that its snapshot is newer than the
    -- locks on the log heads: it reads the last positions, and no other transaction appends to
    -- these logs now.
    return query
    with log_position as materialized (
        select h.tenant, coalesce((
            select e.position from gen_durable.events e
            where e.tenant = h.tenant and e.position is not null
            order by e.position desc limit 1), 0) as position
        from unnest(held) as h(tenant)
    )
    insert into gen_durable.events as made (tenant, name, version, payload, headers, instance_id, step, position, xid)
    select e.tenant, e.name, coalesce(e.version, 1), e.payload::jsonb, e.headers::jsonb, e.instance_id, e.step,
        log_position.position + row_number() over (partition by e.tenant order by e.place),
        case when log_position.position is null then pg_current_xact_id() end
    from unnest(p_tenants, p_names, p_versions, p_payloads, p_headers, p_instances, p_steps)
        with ordinality as e(tenant, name, version, payload, headers, instance_id, step, place)
    left join log_position on log_position.tenant = e.tenant
    order by e.place
    returning made.tenant, made.position, made.arrival_no;
end $$;
