-- Locks the lanes of new instances, and returns for each lane whether an instance is in it. A lane
-- that another transaction has locked is missing from the result.
--   called by: _lanes_at_once      index: instances_lane; as _lock_lanes      locks: as _lock_lanes
create function gen_durable._enter_lanes(p_entries jsonb) returns table (tenant text, key text, taken boolean)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
declare
    tenants text[];
    keys text[];
    floors bigint[];
begin
    select array_agg(l.tenant order by l.tenant, l.key), array_agg(l.key order by l.tenant, l.key) into tenants, keys
    from (select distinct coalesce(e->>'tenant', '') as tenant, e->>'lane' as key
          from jsonb_array_elements(p_entries) e where e ? 'lane') l;
    select array_agg(l.tenant), array_agg(l.key), array_agg(l.floor) into tenants, keys, floors
    from gen_durable._lock_lanes(tenants, keys) l;
    -- Reads whether each lane has instances in another statement than the lock of the lanes, so
    -- that the snapshot of this read is newer than the locks.
    return query
    select l.tenant, l.key, exists (
        select from gen_durable.instances i
        where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
          and i.tenant = l.tenant and i.lane_key = l.key)
    from unnest(tenants, keys, floors) as l(tenant, key, floor);
end $$;
