-- called by: store::limit::keys     index: limit_backlog_pkey, limit_keys_pkey; instances_limit_waiting; as _limit_room
-- locks: nothing
-- Returns at most $2 keys of the limit $1: those that instances wait for, and those with bounds of
-- their own. Counts up to 10,001.
with waiting as materialized (
    select p.key, sum(w.count)::bigint as count, min(b.ready_at) as ready_at
    from (select b.* from gen_durable.limit_backlog b where $1::text = any (b.names) limit 10000) b
    cross join lateral gen_durable._limit_pairs(b.limit_group) p
    cross join lateral (
        select count(*) as count from (
            select 1 from gen_durable.instances i
            where i.status = 'awaiting_limit' and i.limit_group = b.limit_group and i.queue = b.queue
            limit 10001) counted) w
    where p.name = $1 and p.key <> ''
    group by p.key
),
chosen as materialized (
    select k.key, max(k.count) as count, min(k.ready_at) as ready_at
    from (select key, count, ready_at from waiting
          union all select t.key, 0, null from gen_durable.limit_keys t where t.name = $1) k
    group by k.key
    order by max(k.count) desc, k.key
    limit $2
)
select c.key, r.at_once, r.rate, r.period, case when r.rate is not null then r.burst end as burst,
    exists (select from gen_durable.limit_keys t where t.name = $1 and t.key = c.key) as is_own,
    r.claims as running, least(c.count, 10001) as waiting,
    case when r.per_second is not null then r.tokens end as tokens, c.ready_at
from chosen c
cross join lateral gen_durable._limit_room(array[$1::text], array[c.key], true) r
order by c.count desc, c.key
