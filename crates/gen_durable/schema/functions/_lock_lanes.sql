-- Locks lanes and returns the lanes that it has locked. Inserts the rows of lanes that have none.
-- It skips a lane that another transaction has locked: a placement waits for no transaction, and
-- the own transaction of a step that settled the last instance of a lane may hold the lane for
-- long. Because of the lock, either a placement sees the commit that frees the lane, or that commit
-- sees the placed instances.
--   called by: _place, _enter_lanes      index: lanes_pkey
--   locks: the lanes in the order of (tenant, key), FOR UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._lock_lanes(p_tenants text[], p_keys text[])
returns table (tenant text, key text, floor bigint)
language plpgsql
as $$
#variable_conflict use_column
begin
    -- Inserts only rows of `lanes` that are missing: on a conflict with a row of an open
    -- transaction, the insert would wait for that transaction.
    insert into gen_durable.lanes (tenant, key)
    select * from unnest(p_tenants, p_keys) as k(tenant, key)
    where not exists (select from gen_durable.lanes l where l.tenant = k.tenant and l.key = k.key)
    on conflict do nothing;
    return query select l.tenant, l.key, l.floor
    from unnest(p_tenants, p_keys) as k(tenant, key)
    join gen_durable.lanes l on l.tenant = k.tenant and l.key = k.key
    order by l.tenant, l.key
    for update of l skip locked;
end $$;
