-- called by: store::timer::findings     index: instances_blocked, timers_due, instances_deadlines, schedules_pkey
-- locks: nothing
-- Counts problems that an operator should handle: blocked lanes; timers and deadlines that are
-- overdue by more than $1 seconds; paused schedules; and schedules that no live worker has
-- registered or that started no instance at their last occurrence. Each count has an upper bound.
select
    (select count(*) from (
        select from gen_durable.instances i where i.in_lane and i.status = 'failed' limit 10001) blocked) as lanes_blocked,
    (select count(*) from (
        select from gen_durable.timers t
        where t.state = 'pending' and t.due_at < gen_durable.clock() - make_interval(secs => $1) limit 10001) late)
    + (select count(*) from (
        select from gen_durable.instances i
        where i.deadline_at < gen_durable.clock() - make_interval(secs => $1) limit 10001) late) as overdue,
    count(*) filter (where s.paused_at is not null) as schedules_paused,
    count(*) filter (where s.paused_at is null and s.ended_at is null and (s.last_error is not null or not exists (
        select from gen_durable.workers w
        where w.lease_expires_at > statement_timestamp() and s.name = any (w.schedules)))) as schedules_failing
from (select * from gen_durable.schedules s order by s.name limit 1000) s
