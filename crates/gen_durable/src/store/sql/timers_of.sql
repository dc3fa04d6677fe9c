-- called by: store::timer::of     index: instances_pkey, timers_repeating
-- locks: nothing
-- Returns the due times of one instance: of its sleep, of its deadline, and of the repeating timers
-- of its wait. The statement has the columns of list_timers.sql except the cursor.
select kind, id, due_at, $1::bigint as instance_id, machine, null::text as schedule, cycle, step,
    due_at < gen_durable.clock() as overdue, true as served, gen_durable.clock() as now
from (
    select 'sleep' as kind, null::bigint as id, i.eligible_at as due_at, i.machine, null::text as cycle, i.step
    from gen_durable.instances i
    where i.id = $1 and i.status = 'runnable' and i.eligible_at > gen_durable.clock() and i.eligible_at < 'infinity'
    union all
    select 'deadline', null, i.deadline_at, i.machine, null, i.deadline_step
    from gen_durable.instances i
    where i.id = $1 and i.deadline_at is not null
    union all
    (select 'repeat', t.id, t.due_at, coalesce(t.new_instance->>'machine', ''), t.cycle, null
     from gen_durable.timers t
     where t.instance_id = $1 and t.state = 'pending'
     limit 200)
) due
order by due_at, id
