-- called by: store::signal::cancel     index: instances_pkey or instances_key; lanes_pkey, instances_lane
-- locks: the instance; then its parent; then the lane of the instance, if the step of the instance
-- was not running and the lane had a lane worker
select gen_durable.cancel($1, $2, $3, $4, $5)
