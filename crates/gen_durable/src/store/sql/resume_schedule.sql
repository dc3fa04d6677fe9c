-- called by: store::schedule::resume     index: schedules_pkey, timers_next
-- locks: the schedule's row
select gen_durable._resume_schedule($1, $2, $3, $4, $5)
