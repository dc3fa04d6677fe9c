-- called by: store::timer::cancel     index: timers_pkey, instances_pkey
-- locks: the instance beside whose wait it stands, then the timer
select gen_durable.cancel_timer($1)
