-- Raises the floor of each lane that these instances have left to the position of the instance, so
-- that the next scan of the lane begins there and does not read dead index entries of earlier
-- instances.
--   called by: _promote_successors      index: instances_pkey, lanes_pkey
--   locks: the lanes, skipping locked rows: a later settled instance raises the floor of a skipped
--   lane
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._raise_lane_floors(p_ids bigint[]) returns void
language plpgsql
as $$
begin
    with held as materialized (
        select l.tenant, l.key, i.lane_position
        from gen_durable.instances i
        join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
        where i.id = any (p_ids) and not i.in_lane and i.lane_position > l.floor
        for no key update of l skip locked
    )
    update gen_durable.lanes l set floor = h.lane_position
    from held h
    where l.tenant = h.tenant and l.key = h.key;
end $$;
