-- called by: store::timer::fire     index: timers_pkey, schedules_pkey, instances_pkey, instances_key
-- locks: the schedule or the instance of each timer, then the timer, skipping rows that another
-- transaction holds
select id, answer, late, started_id, queue, priority, eligible_at, next_due from gen_durable._fire($1::text::jsonb, $2)
