-- called by: store::timer::cancel     index: timers_pkey, instances_pkey
-- locks: the waiting instance that the timer belongs to, then the timer
select gen_durable.cancel_timer($1)
