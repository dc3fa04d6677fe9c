-- Returns tenants with new events. These are tenants with events without a position, recorded by
-- transactions that had not ended in the snapshot p_looked, and tenants with positioned events that
-- have an arrival number above p_from. The last row has no tenant and says how far this scan has
-- read.
--   called by: store::events::discover      index: events_unplaced_all, events_pkey
--   locks: nothing
create function gen_durable._discover(p_looked pg_snapshot, p_from bigint, p_limit int)
returns table (tenant text, unplaced boolean, arrival_no bigint, looked text, pos bigint)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
begin
    return query
    with waiting as materialized (
        select e.tenant from gen_durable.events e
        where e.position is null and e.xid >= coalesce(pg_snapshot_xmax(p_looked), '0'::xid8)
        union all
        select late.tenant
        from pg_snapshot_xip(p_looked) as under_way(xid)
        cross join lateral (
            select e.tenant from gen_durable.events e where e.position is null and e.xid = under_way.xid offset 0) late
    ),
    latest as materialized (
        select coalesce((select e.arrival_no from gen_durable.events e order by e.arrival_no desc limit 1), 0) as arrival_no
    ),
    arrived as materialized (
        select e.tenant, e.arrival_no, e.position from gen_durable.events e
        where p_from is not null and e.arrival_no > p_from and e.position is not null
        order by e.arrival_no
        limit p_limit
    )
    select distinct waiting.tenant, true, null::bigint, null::text, null::bigint from waiting
    union all
    select arrived.tenant, false, null::bigint, null::text, max(arrived.position) from arrived group by arrived.tenant
    union all
    select null, null,
        case when (select count(*) from arrived) < p_limit then latest.arrival_no
             else (select max(arrived.arrival_no) from arrived) end,
        pg_current_snapshot()::text, null::bigint
    from latest;
end $$;
