-- called by: store::timer::upcoming     index: timers_due, instances_deadlines
-- locks: nothing
select due_at, is_timer, now from gen_durable._upcoming($1, $2, $3)
