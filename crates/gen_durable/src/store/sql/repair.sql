-- called by: store::lane::repair     index: placement_watermarks_pkey, instances_arrivals, lanes_pkey, instances_lane, instances_waiting, instances_turn
-- locks: the placer, lanes and what waits in them, skipping what somebody holds
select lane_tenant, lane_key, tenant, key, repaired from gen_durable.repair($1, $2, $3, $4, $5)
