-- called by: store::pulse::failure_groups     index: instances_aside, then instances_pkey
-- locks: nothing
-- Groups the errors of failed and stuck instances by machine, step and group of errors, with the
-- error of the newest instance of each group. Reads the newest $1 failed and the newest $1 stuck
-- instances, and returns at most $2 groups, the largest first.
select g.machine, g.step, g.status::text, g.error_group, g.count, g.first_at, g.last_at, g.newest,
    left(i.last_error, 500) as error, gen_durable._error_fingerprint(i.last_error) as fingerprint
from (
    select looked.machine, looked.step, looked.status, looked.error_group, count(*) as count,
        min(looked.updated_at) as first_at, max(looked.updated_at) as last_at, max(looked.id) as newest
    from (
        (select i.id, i.machine, i.step, i.status, i.error_group, i.updated_at from gen_durable.instances i
         where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
           and i.status >= 'failed' and i.status <= 'failed'
         order by i.status desc, i.id desc limit $1)
        union all
        (select i.id, i.machine, i.step, i.status, i.error_group, i.updated_at from gen_durable.instances i
         where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
           and i.status >= 'stuck' and i.status <= 'stuck'
         order by i.status desc, i.id desc limit $1)
    ) looked
    group by 1, 2, 3, 4
    order by count(*) desc, max(looked.updated_at) desc
    limit $2
) g
join gen_durable.instances i on i.id = g.newest
order by g.count desc, g.last_at desc
