-- called by: store::lane::place     index: instances_arrivals, instances_lane, instances_pkey, lanes_pkey
-- locks: the placer; then arrivals, lanes and heads, skipping what somebody holds
select gen_durable.place(0, 1000)
