-- called by: store::lease::grant_missing_leases     index: instances_held, one probe per holder; workers_pkey
-- locks: no existing rows
-- Inserts a row of `workers` for every worker that has claims and no row, and returns the ids of
-- these workers. A claim can commit after the row of its worker was deleted: the pick was under way
-- while the process was suspended. If that process then crashes, the reaper cannot find its claims
-- without a row. If the process is alive, the process renews the lease of the inserted row; if it
-- has crashed, the lease expires and the reaper finds the row.
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
