-- called by: store::lease::adopt     index: instances_held, one probe for each holder; workers_pkey
-- locks: nothing that exists
-- A claim can be committed after its worker was buried (the statement was under way while the process slept). If that
-- process then dies, no worker's row leads to what it claimed. Such a holder gets a row again, with a lease that it
-- renews if it lives; if it does not, the reaper finds it.
with recursive holder(id) as (
    (select i.locked_by from gen_durable.instances i
     where i.locked_by is not null
     order by i.locked_by limit 1)
    union all
    select later.locked_by
    from holder
    cross join lateral (
        select i.locked_by from gen_durable.instances i
        where i.locked_by > holder.id
        order by i.locked_by limit 1
    ) later
)
insert into gen_durable.workers (id, lease_expires_at, host, pid, queues, machines)
select holder.id, statement_timestamp() + make_interval(secs => $1), 'unknown', 0, '{}', '{}'
from holder
where not exists (select from gen_durable.workers w where w.id = holder.id)
on conflict (id) do nothing
returning id::text
