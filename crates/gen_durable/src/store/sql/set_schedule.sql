-- called by: store::schedule::set     index: schedules_pkey, timers_next
-- locks: the schedule's row, then its pending timer
select gen_durable._set_schedule($1, $2, $3, $4, $5, $6, $7)
