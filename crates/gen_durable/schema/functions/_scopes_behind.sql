-- Returns scopes that have work and that no other worker owns: scopes that are due for a retry, and
-- scopes of the next page of tenants that have not read to the end of their log. Also returns
-- scopes with rows of an older version, if the projection rebuilds such rows by itself and no such
-- run is open or has failed. The last row has no tenant: it says whether a page was full. With
-- p_all (for tests) the page has all tenants, and log_walks is not read.
--   called by: store::projections::behind
--   index: projections_retry, event_heads_pkey, projections_pkey, events_log, projection_runs_open
--   locks: as _walk_page
create function gen_durable._scopes_behind(
    p_projections text[], p_versions int[], p_eager boolean[], p_worker uuid, p_page int, p_pause float8, p_idle float8,
    p_all boolean
) returns table (tenant text, projection text, more boolean)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
declare
    build record;
    page text[];
    more boolean := false;
begin
    return query
    with due as materialized (
        select p.tenant, p.projection, p.version, p.position, p.owner, p.owned_until from gen_durable.projections p
        where p.retry_at <= gen_durable.clock() and p.status <> 'halted'
        order by p.retry_at
    )
    select due.tenant, due.projection, null::boolean
    from due join unnest(p_projections, p_versions) as b(projection, version)
        on b.projection = due.projection and b.version = due.version
    where (due.owner is null or due.owner = p_worker or due.owned_until < statement_timestamp())
      and due.position < (
        select e.position from gen_durable.events e
        where e.tenant = due.tenant and e.position is not null order by e.position desc limit 1)
    limit p_page;
    for build in select * from unnest(p_projections, p_versions, p_eager) as b(projection, version, eager) loop
        page := case
            when p_all then null::text || array(select h.tenant from gen_durable.event_heads h order by h.tenant)
            else gen_durable._walk_page('behind', build.projection, build.version, p_page, p_pause, p_idle) end;
        continue when page is null;
        more := more or cardinality(page) > p_page;
        return query
        select t.tenant, build.projection, null::boolean
        from unnest(page[2:]) as t(tenant)
        left join gen_durable.projections p on p.tenant = t.tenant and p.projection = build.projection
        where (p.owner is null or p.owner = p_worker or p.owned_until < statement_timestamp())
          and case
            when p.version < build.version then build.eager and not exists (
                select from gen_durable.projection_runs r
                where r.tenant = p.tenant and r.projection = p.projection
                  and (r.finished_at is null or r.status = 'failed' and r.requested_by = 'version ' || build.version))
            when p.version > build.version or p.status = 'halted' or p.retry_at > gen_durable.clock() then false
            else coalesce(p.position, 0) < coalesce((
                select e.position from gen_durable.events e
                where e.tenant = t.tenant and e.position is not null order by e.position desc limit 1), 0)
          end;
    end loop;
    return query select null::text, null::text, more;
end $$;
