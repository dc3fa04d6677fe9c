-- called by: store::limit::counts     index: limits_pkey, instances_limit_held, instances_limit_waiting
-- locks: nothing
-- Counts the claims and the waiting instances of the first $1 limits by name. Reads at most $2
-- claims and $2 waiting instances, regardless of the number of limits and keys: for each limit an
-- equal part, 10,001 at most, of the groups that begin with it. The counts of a limit are lower
-- bounds if such a part was not read to its end.
with named as materialized (
    select l.* from gen_durable.limits l order by l.name limit $1
),
part as materialized (select least(10001, $2 / greatest(1, count(*))) as rows from named),
counted as (
    select n.name as first_name, true as is_held, h.limit_group, h.count
    from named n
    cross join lateral (
        select r.limit_group, count(*) as count from (
            select i.limit_group from gen_durable.instances i
            where i.limit_group is not null and (i.status = 'executing' or i.locked_by is not null)
              and i.limit_group >= n.name || chr(1) and i.limit_group < n.name || chr(2)
            order by i.limit_group limit (select rows from part)) r
        group by r.limit_group) h
    union all
    select n.name, false, w.limit_group, w.count
    from named n
    cross join lateral (
        select r.limit_group, count(*) as count from (
            select i.limit_group from gen_durable.instances i
            where i.status = 'awaiting_limit' and i.limit_group >= n.name || chr(1) and i.limit_group < n.name || chr(2)
            order by i.limit_group limit (select rows from part)) r
        group by r.limit_group) w
),
capped as (
    select c.is_held, c.limit_group, c.count,
        sum(c.count) over (partition by c.first_name, c.is_held) >= (select rows from part) as is_capped
    from counted c
),
used as (
    select p.name, c.is_held, c.count, c.is_capped
    from capped c
    cross join lateral (select distinct p.name from gen_durable._limit_pairs(c.limit_group) p) p
),
sums as (
    select u.name, sum(u.count) filter (where u.is_held)::bigint as running,
        sum(u.count) filter (where not u.is_held)::bigint as waiting, bool_or(u.is_capped) as is_lower_bound
    from used u
    group by u.name
)
select n.name, n.at_once, n.per_key, n.rate, n.period, n.burst, n.key_rate, n.key_period, n.key_burst,
    n.declared::text as declared, n.changed_at, n.paused_at,
    case when n.closed_until > gen_durable.clock() then n.closed_until end as closed_until,
    coalesce(s.running, 0) as running, null::float8 as tokens,
    coalesce(s.waiting, 0) as waiting, coalesce(s.is_lower_bound, false) as is_lower_bound
from named n
left join sums s on s.name = n.name
order by n.name
