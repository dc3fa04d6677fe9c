-- Returns the worker that runs a queued instance as the head of its lane; null if no worker does.
--   called by: _cancel_live
--   index: instances_pkey, lanes_pkey, instances_lane
--   locks: nothing
create function gen_durable._lane_worker(p_id bigint) returns uuid
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    found_lane record;
begin
    -- Reads the row of the lane first, and searches the head of the lane only if the lane has a
    -- worker: most lanes have none.
    select l.tenant, l.key, l.floor, l.worker_id into found_lane
    from gen_durable.instances i
    join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
    where i.id = p_id;
    return case when found_lane.worker_id is not null and p_id = (
        select h.id from gen_durable.instances h
        where h.lane_hash = gen_durable._lane_hash(found_lane.tenant, found_lane.key) and h.in_lane
          and h.lane_position > found_lane.floor and h.tenant = found_lane.tenant and h.lane_key = found_lane.key
        order by h.lane_hash, h.lane_position
        limit 1) then found_lane.worker_id end;
end $$;
