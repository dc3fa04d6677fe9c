-- called by: store::schedule::run     index: schedules_pkey, timers_once
-- locks: the schedule's row
select gen_durable.run_schedule($1)
