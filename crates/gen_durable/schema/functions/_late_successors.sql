-- Locks the lanes of settled instances for which no successor was found, and searches again:
-- `_place` may have assigned a position in the lane between the first search and the lock. Returns
-- the successors that it found, and the settled instance of each.
--   called by: _promote_successors      index: instances_pkey, lanes_pkey, instances_lane
--   locks: the lanes, in (tenant, key)
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._late_successors(p_emptied bigint[], out ids bigint[], out freed bigint[])
language plpgsql
as $$
#variable_conflict use_column
begin
    -- Locks the lanes first and scans them in another statement, so that the snapshot of the scan
    -- is newer than the locks.
    perform from gen_durable.instances i
    join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
    where i.id = any (p_emptied)
    order by l.tenant, l.key
    for update of l;
    select array_agg(n.id), array_agg(i.id) into ids, freed
    from gen_durable.instances i
    cross join lateral (
        select e.id, e.status from gen_durable.instances e
        where e.lane_hash = i.lane_hash and e.in_lane and e.lane_position > i.lane_position
          and e.tenant = i.tenant and e.lane_key = i.lane_key
        order by e.lane_hash, e.lane_position
        limit 1
    ) n
    where i.id = any (p_emptied) and n.status = 'queued';
end $$;
