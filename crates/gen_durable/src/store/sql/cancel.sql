-- called by: store::signal::cancel     index: instances_pkey or instances_key; instances_children; lanes_pkey, instances_lane
-- locks: the instances by id, from the youngest; then their parents; then the lanes that they had, if those were led
select gen_durable.cancel($1, $2, $3, $4, $5, $6)
