-- Assigns log positions to those events of these tenants that have none. Skips a tenant if another
-- transaction has locked its log head. Returns the tenants that it processed.
--   called by: store::events::place      index: event_heads_pkey; as _place_events_locked
--   locks: log heads (rows of event_heads) by tenant, skipping locked rows: it waits for no lock
create function gen_durable._place_events(p_tenants text[], p_all boolean default false) returns table (tenant text, placed bigint)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    held text[];
begin
    insert into gen_durable.event_heads (tenant)
    select distinct wanted.tenant from unnest(p_tenants) as wanted(tenant)
    where not exists (select from gen_durable.event_heads h where h.tenant = wanted.tenant)
    order by 1
    on conflict do nothing;
    held := array(
        select h.tenant from gen_durable.event_heads h
        where h.tenant = any (p_tenants) order by h.tenant for no key update skip locked);
    return query select * from gen_durable._place_events_locked(held, p_all);
end $$;
