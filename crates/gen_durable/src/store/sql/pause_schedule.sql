-- called by: store::schedule::pause     index: schedules_pkey, timers_next
-- locks: the schedule's row, then its pending timer
select gen_durable.pause_schedule($1, $2)
