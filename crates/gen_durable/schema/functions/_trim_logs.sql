-- Deletes old events of the next page of tenants, up to p_limit. It keeps the last event of each
-- log, which defines the log's last position, and every event that a projection or a run has not
-- read yet; a projection without a scope for a tenant has read nothing of that tenant's log. A log
-- with a first event that is not old enough costs one index probe. Returns how many events were
-- deleted, and whether there may be more to delete now.
--   called by: store::events::_trim_logs
--   index: events_log, events_pkey, projections_by_name, projections_pkey, projection_runs_open
--   locks: as _walk_page, then the events that it deletes
create function gen_durable._trim_logs(
    p_older_seconds float8, p_followers text[], p_page int, p_limit int, p_idle float8
) returns table (gone bigint, more boolean)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
declare
    page text[] := gen_durable._walk_page('trim', '', 0, p_page, 0, p_idle);
    young timestamptz := gen_durable.clock() - make_interval(secs => p_older_seconds);
    followers text[];
    count bigint;
begin
    if page is null then
        return query select 0::bigint, false;
        return;
    end if;
    followers := array(
        -- Jumps from one projection name to the next in the index of scopes: the cost depends on
        -- the number of projections, and not on the number of scopes.
        with recursive name as (
            (select p.projection from gen_durable.projections p order by p.projection limit 1)
            union all
            select (select p.projection from gen_durable.projections p where p.projection > name.projection
                    order by p.projection limit 1)
            from name where name.projection is not null)
        select name.projection from name where name.projection is not null union select unnest(p_followers));
    with aged as materialized (
        select t.tenant
        from unnest(page[2:]) as t(tenant)
        cross join lateral (
            select e.at from gen_durable.events e
            where e.tenant = t.tenant and e.position is not null order by e.position limit 1) first
        where first.at < young
    ),
    floor as materialized (
        select aged.tenant, least(
            (select e.position - 1 from gen_durable.events e
             where e.tenant = aged.tenant and e.position is not null order by e.position desc limit 1),
            (select min(p.position) from gen_durable.projections p where p.tenant = aged.tenant),
            case when exists (
                select from unnest(followers) as follower(name)
                where not exists (
                    select from gen_durable.projections p where p.tenant = aged.tenant and p.projection = follower.name))
                then 0 end,
            (select min(r.position) from gen_durable.projection_runs r
             where r.tenant = aged.tenant and r.finished_at is null)) as position
        from aged
    ),
    old as materialized (
        select o.arrival_no
        from floor
        cross join lateral (
            select e.arrival_no, e.at from gen_durable.events e
            where e.tenant = floor.tenant and e.position <= floor.position
            order by e.position limit p_limit) o
        where o.at < young
        limit p_limit
    ),
    deleted as (
        delete from gen_durable.events e using old where e.arrival_no = old.arrival_no returning 1
    )
    select count(*) into count from deleted;
    if count >= p_limit then
        -- The logs of this page of tenants may have more old events, so the next call reads the
        -- same page again.
        update gen_durable.log_walks w set after_tenant = page[1], due_at = statement_timestamp()
        where w.walk = 'trim' and w.projection = '' and w.version = 0;
    end if;
    return query select count, count >= p_limit or cardinality(page) > p_page;
end $$;
