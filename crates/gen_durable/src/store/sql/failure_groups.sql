-- called by: store::pulse::failure_groups     index: instances_aside
-- locks: nothing
-- Groups the errors of failed and stuck instances by machine, step and text. Reads the newest $1
-- failed and the newest $1 stuck instances.
select looked.machine, looked.step, looked.status::text, looked.error, count(*) as count,
    min(looked.updated_at) as first_at, max(looked.updated_at) as last_at, max(looked.id) as newest
from (
    (select i.id, i.machine, i.step, i.status, left(i.last_error, 400) as error, i.updated_at from gen_durable.instances i
     where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= 'failed' and i.status <= 'failed'
     order by i.status desc, i.id desc limit $1)
    union all
    (select i.id, i.machine, i.step, i.status, left(i.last_error, 400) as error, i.updated_at from gen_durable.instances i
     where i.status in ('awaiting_signal', 'awaiting_children', 'stuck', 'failed', 'cancelled')
       and i.status >= 'stuck' and i.status <= 'stuck'
     order by i.status desc, i.id desc limit $1)
) looked
group by 1, 2, 3, 4
order by max(looked.updated_at) desc
limit 2000
