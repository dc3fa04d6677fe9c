-- called by: store::lane::repair     index: placement_watermarks_pkey, instances_arrival_no, lanes_pkey, instances_lane, instances_partition_waiting, instances_partition_holder
-- locks: the placement lock, lanes and the instances that wait in them, skipping rows that another
-- transaction holds
select lane_tenant, lane_key, tenant, key, repaired from gen_durable._repair($1, $2, $3, $4, $5)
