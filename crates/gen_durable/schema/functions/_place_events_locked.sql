-- Assigns log positions to those events of these tenants that have none. The caller has locked the
-- log heads of the tenants.
--   called by: _append, _place_events
--   index: events_unplaced, events_log, events_pkey, event_scans_pkey
--   locks: the events to which it assigns a position
create function gen_durable._place_events_locked(p_tenants text[], p_all boolean) returns table (tenant text, placed bigint)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
begin
    return query
    with head as materialized (
        select t.tenant,
            case when not p_all then (
                select l.looked from gen_durable.event_scans l where l.tenant = t.tenant order by l.n desc limit 1) end as looked
        from unnest(p_tenants) as t(tenant)
    ),
    waiting as materialized (
        select head.tenant, found.arrival_no, row_number() over (partition by head.tenant order by found.arrival_no) as place
        from head
        cross join lateral (
            select e.arrival_no from gen_durable.events e
            where e.tenant = head.tenant and e.position is null
              and e.xid >= coalesce(pg_snapshot_xmax(head.looked), '0'::xid8)
            union all
            -- `offset 0` makes the planner keep the order of this join: with the tables in the
            -- reverse order, the join would read every event.
            select late.arrival_no
            from pg_snapshot_xip(head.looked) as under_way(xid)
            cross join lateral (
                select e.arrival_no from gen_durable.events e
                where e.tenant = head.tenant and e.position is null and e.xid = under_way.xid
                offset 0) late
        ) found
    ),
    log_position as materialized (
        select distinct on (waiting.tenant) waiting.tenant, coalesce((
            select e.position from gen_durable.events e
            where e.tenant = waiting.tenant and e.position is not null
            order by e.position desc limit 1), 0) as position
        from waiting
    ),
    given as (
        update gen_durable.events e
        set position = log_position.position + waiting.place
        from waiting join log_position on log_position.tenant = waiting.tenant
        where e.arrival_no = waiting.arrival_no
        returning e.tenant
    ),
    counted as materialized (
        select given.tenant, count(*) as placed from given group by given.tenant
    ),
    -- Stores the snapshot of this statement, which reads the events without a log position: the
    -- next scan reads only events that are not visible in this snapshot.
    noted as (
        insert into gen_durable.event_scans (tenant, looked) select counted.tenant, pg_current_snapshot() from counted
    ),
    forgotten as (
        delete from gen_durable.event_scans l using counted where l.tenant = counted.tenant
    )
    select head.tenant, coalesce(counted.placed, 0) from head left join counted on counted.tenant = head.tenant;
end $$;
