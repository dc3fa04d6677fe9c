-- Locks lanes and returns those that it got; creates the rows that are missing. It skips a locked
-- lane: a placement waits for no transaction, and a caller's transaction that cancelled a head may
-- hold its lane for long. The lock makes a placement and the commit that frees the lane see one
-- another.
--   called by: _place, _enter_lanes      index: lanes_pkey
--   locks: the lanes in (tenant, key), FOR UPDATE SKIP LOCKED
-- Its callers pin the plans.
create function gen_durable._lock_lanes(p_tenants text[], p_keys text[])
returns table (tenant text, key text, floor bigint, has_worker boolean)
language plpgsql
as $$
#variable_conflict use_column
begin
    -- Only missing rows: a conflict with a row that an open transaction inserts would wait for it.
    insert into gen_durable.lanes (tenant, key)
    select * from unnest(p_tenants, p_keys) as k(tenant, key)
    where not exists (select from gen_durable.lanes l where l.tenant = k.tenant and l.key = k.key)
    on conflict do nothing;
    return query select l.tenant, l.key, l.floor, l.worker_id is not null
    from unnest(p_tenants, p_keys) as k(tenant, key)
    join gen_durable.lanes l on l.tenant = k.tenant and l.key = k.key
    order by l.tenant, l.key
    for update of l skip locked;
end $$;
