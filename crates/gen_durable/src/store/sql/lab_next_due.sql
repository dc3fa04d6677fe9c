-- called by: store::lab::next_due     index: none: a lab is small
-- locks: nothing
select min(due) from (
    select eligible_at as due from gen_durable.instances where status = 'runnable'
    union all
    select deadline_at from gen_durable.instances
    union all
    select due_at from gen_durable.timers where state = 'pending' and (schedule is null or schedule = any ($2))
    union all
    select retry_at from gen_durable.projections
    union all
    select ready_at from gen_durable.limit_backlog where held_on is null
) later
where due > gen_durable.clock() and due <= $1
