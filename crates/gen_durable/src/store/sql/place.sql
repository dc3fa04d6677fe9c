-- called by: store::lane::place     index: instances_arrival_no, instances_lane, instances_pkey, lanes_pkey
-- locks: the placement lock; then instances that wait for placement, lanes and heads, skipping rows
-- that another transaction holds
select gen_durable._place(0, 1000)
