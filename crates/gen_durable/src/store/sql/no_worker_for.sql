-- called by: store::inspect::no_worker_for     index: none: it reads the whole table, for operators
-- locks: nothing
-- Counts the instances that have not settled and that no live worker can run. The step is null if
-- no live worker runs the machine and version at all.
with live as materialized (
    select i.machine, i.machine_version, i.step, count(*) as instances
    from gen_durable.instances i
    where i.settled_at is null
    group by i.machine, i.machine_version, i.step
),
no_worker_for as (
    select l.machine, l.machine_version, l.instances,
        case when exists (
            select from gen_durable.workers w
            where w.lease_expires_at > statement_timestamp() and l.machine || '/' || l.machine_version = any (w.machines)) then l.step end as step
    from live l
    where not exists (
        select from gen_durable.workers w
        where w.lease_expires_at > statement_timestamp() and gen_durable._knows_step(w.steps, l.machine, l.machine_version, l.step))
)
select u.machine, u.machine_version, u.step, sum(u.instances)::bigint as count
from no_worker_for u
group by u.machine, u.machine_version, u.step
order by u.machine, u.machine_version, u.step nulls first
