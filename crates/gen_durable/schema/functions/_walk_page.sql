-- Returns the next page of a pass over all tenants (a row of log_walks) and moves the row to the
-- end of the page. Returns null if the pass is not due, or another worker has locked the row. The
-- first element is the tenant after which the page begins, null for the first page; the other
-- elements are the tenants of the page.
--   called by: _scopes_behind, _trim_logs      index: log_walks_pkey, event_heads_pkey
--   locks: the row of log_walks, skipping it if another worker holds it
create function gen_durable._walk_page(
    p_walk text, p_projection text, p_version int, p_page int, p_pause float8, p_idle float8
) returns text[]
language plpgsql
as $$
-- planner: pinned
declare
    walk gen_durable.log_walks;
    tenants text[];
begin
    if not exists (select from gen_durable.log_walks w
                   where w.walk = p_walk and w.projection = p_projection and w.version = p_version) then
        insert into gen_durable.log_walks (walk, projection, version) values (p_walk, p_projection, p_version)
        on conflict do nothing;
    end if;
    select w.* into walk from gen_durable.log_walks w
    where w.walk = p_walk and w.projection = p_projection and w.version = p_version and w.due_at <= statement_timestamp()
    for no key update skip locked;
    if not found then
        return null;
    end if;
    tenants := array(
        select h.tenant from gen_durable.event_heads h
        where h.tenant >= coalesce(walk.after_tenant, '') and h.tenant is distinct from walk.after_tenant
        order by h.tenant limit p_page);
    update gen_durable.log_walks w
    set after_tenant = case when cardinality(tenants) = p_page then tenants[p_page] end,
        due_at = statement_timestamp()
            + make_interval(secs => case when cardinality(tenants) = p_page then p_pause else p_idle end)
    where w.walk = p_walk and w.projection = p_projection and w.version = p_version;
    return walk.after_tenant || tenants;
end $$;
