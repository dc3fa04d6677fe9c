-- Returns the head of a lane: the instance that runs in the lane, or will run next.
--   called by: _refuse_own_lane      index: lanes_pkey, instances_lane      locks: nothing
create function gen_durable._lane_head(p_tenant text, p_key text) returns bigint
    language sql stable
    as $$
        select head.id from gen_durable.lanes l
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
              and i.tenant = l.tenant and i.lane_key = l.key
            order by i.lane_hash, i.lane_position
            limit 1
        ) head
        where l.tenant = p_tenant and l.key = p_key
    $$;
