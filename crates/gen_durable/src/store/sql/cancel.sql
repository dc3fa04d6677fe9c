-- called by: store::signal::cancel     index: instances_pkey or instances_key; lanes_pkey, instances_lane
-- locks: the instance; then its parent; then the lane that it had, if it did not run and the lane was led
select gen_durable.cancel($1, $2, $3, $4, $5)
