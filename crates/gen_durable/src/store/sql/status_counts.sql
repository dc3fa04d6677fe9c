-- called by: store::pulse::status_counts     index: instances_pick, _suspects, _waiting, _held, _limit_waiting, _aside
-- locks: nothing
-- Counts instances by machine, step and status, at most $1 of each status. Does not count done
-- instances. The ORDER BY clauses make the planner use the indexes of this statement's header.
select looked.machine, looked.machine_version, looked.step, looked.status::text, count(*) as count
from (
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
     order by i.queue, i.priority, i.eligible_at, i.id limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting
     order by i.queue, i.eligible_at, i.id limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.partition_waiting
     order by i.tenant, i.partition_key, i.priority, i.eligible_at, i.id limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status = 'executing' order by i.locked_by limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status = 'awaiting_limit'
     order by i.limit_group, i.queue, i.priority, i.eligible_at, i.id limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= 'awaiting_signal' and i.status <= 'awaiting_signal'
     order by i.status desc, i.id desc limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= 'awaiting_children' and i.status <= 'awaiting_children'
     order by i.status desc, i.id desc limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= 'stuck' and i.status <= 'stuck'
     order by i.status desc, i.id desc limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= 'failed' and i.status <= 'failed'
     order by i.status desc, i.id desc limit $1)
    union all
    (select i.machine, i.machine_version, i.step, i.status from gen_durable.instances i
     where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= 'cancelled' and i.status <= 'cancelled'
     order by i.status desc, i.id desc limit $1)
) looked
group by 1, 2, 3, 4
order by 1, 2, 3, 4
limit 5000
