-- called by: store::schedule::list     index: schedules_pkey, timers_next, timers_once, instances_pkey
-- locks: nothing
-- Returns a page of schedules by name, after $3, or the schedule with the name $1. For each
-- schedule, the row names at most ten of the workers that have registered the schedule.
select s.name, s.cycle, s.missed, s.code_cycle, s.anchor_at, s.set_at, s.set_by, s.paused_at, s.paused_by, s.ended_at,
    s.last_error, ahead.due_at as next_at, ahead.remaining, live.hosts is not null as served, gen_durable.clock() as now,
    (select jsonb_agg(jsonb_build_object('due', run.due_at, 'state', run.state, 'ended', run.ended_at, 'instance', run.started_id,
            'status', i.status, 'missed', run.missed_count, 'manual', run.manual) order by run.due_at desc)::text
     from (select * from gen_durable.timers t
           where t.schedule = s.name and t.state <> 'cancelled' and t.ended_at is not null
           order by t.due_at desc limit $2) run
     left join gen_durable.instances i on i.id = run.started_id) as runs,
    live.hosts, live.pids
from (select * from gen_durable.schedules s
      where ($1::text is null or s.name = $1) and ($3::text is null or s.name > $3)
      order by s.name limit $4) s
left join gen_durable.timers ahead on ahead.schedule = s.name and ahead.state = 'pending' and not ahead.manual
cross join lateral (
    select array_agg(w.host order by w.host, w.pid) as hosts, array_agg(w.pid order by w.host, w.pid) as pids
    from (select w.host, w.pid from gen_durable.workers w
          where w.lease_expires_at > statement_timestamp() and s.name = any (w.schedules) limit 10) w
) live
order by s.name
