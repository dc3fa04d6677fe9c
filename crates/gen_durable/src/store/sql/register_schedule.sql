-- called by: store::schedule::register     index: schedules_pkey, timers_next
-- locks: the schedule's row, then its pending timer; no row if the declaration changes nothing
select gen_durable._register_schedule($1, $2, $3, $4, $5, $6)
