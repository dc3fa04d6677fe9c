-- called by: store::timer::fire     index: timers_pkey, schedules_pkey, instances_pkey, instances_key
-- locks: each timer's schedule or instance, then the timer, skipping what somebody holds
select id, answer, late, started_id, queue, priority, eligible_at, next_due from gen_durable.fire($1::text::jsonb, $2)
