-- called by: store::pulse::backlog     index: instances_pick (a loose scan over queues and priorities), instances_held
-- locks: nothing
-- Counts the due and the later instances of each queue. Each count has an upper bound, so that a
-- long backlog costs no more than a short one.
with recursive used(queue, priority, place) as (
    (select i.queue, i.priority, 1 from gen_durable.instances i
     where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting order by i.queue, i.priority limit 1)
    union all
    select later.queue, later.priority, used.place + 1 from used
    cross join lateral (
        select i.queue, i.priority from gen_durable.instances i
        where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting and (i.queue, i.priority) > (used.queue, used.priority)
        order by i.queue, i.priority limit 1
    ) later
    where used.place < 500
),
waiting as (
    select used.queue, sum(due.count) as due, min(due.oldest) as oldest, sum(later.count) as later, min(later.first) as next
    from used
    cross join lateral (
        select count(*), min(d.eligible_at) as oldest from (
            select i.eligible_at from gen_durable.instances i
            where i.queue = used.queue and i.priority = used.priority and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
              and i.eligible_at <= gen_durable.clock()
            order by i.eligible_at limit $1
        ) d
    ) due
    cross join lateral (
        select count(*), min(l.eligible_at) as first from (
            select i.eligible_at from gen_durable.instances i
            where i.queue = used.queue and i.priority = used.priority and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
              and i.eligible_at > gen_durable.clock()
            order by i.eligible_at limit $1
        ) l
    ) later
    group by used.queue
),
executing as (
    select held.queue, count(*) as count
    from (select i.queue from gen_durable.instances i where i.status = 'executing' order by i.locked_by limit $1) held
    group by held.queue
),
named as (
    select queue as name from waiting
    union select q.name from gen_durable.queues q
    union select queue from executing
    union select unnest(w.queues) from gen_durable.workers w where w.lease_expires_at > statement_timestamp()
)
select named.name, q.paused_at, case when q.paused_at is not null then q.paused_by end as paused_by,
    coalesce(q.fair, false) as is_fair, coalesce(w.due, 0)::bigint as due, w.oldest as oldest_due_at,
    coalesce(w.later, 0)::bigint as scheduled, w.next as next_due_at,
    coalesce(e.count, 0) as executing,
    (select count(*) from gen_durable.workers a where a.lease_expires_at > statement_timestamp() and named.name = any (a.queues)) as workers
from named
left join gen_durable.queues q on q.name = named.name
left join waiting w on w.queue = named.name
left join executing e on e.queue = named.name
order by named.name
limit 1000
