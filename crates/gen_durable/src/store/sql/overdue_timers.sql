-- called by: store::timer::overdue     index: timers_due, instances_deadlines
-- locks: nothing
-- Counts overdue timers and deadlines, up to 10,001 of each kind.
select (select count(*) from (select from gen_durable.timers t
            where t.state = 'pending' and t.due_at < gen_durable.clock() - make_interval(secs => $1) limit 10001) late)
    + (select count(*) from (select from gen_durable.instances i
            where i.deadline_at < gen_durable.clock() - make_interval(secs => $1) limit 10001) late)
