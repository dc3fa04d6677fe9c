-- called by: store::limit::list     index: limits_pkey, instances_limit_waiting; as _limit_room
-- locks: nothing
-- Returns the limits, at most 1,000, or the one with the name $1: bounds and use. Counts up to
-- 10,001 waiting instances of one limit, and 50,000 of all together. The groups that begin with a
-- limit are a range of the index; the groups that contain it as a further limit are read from
-- limit_backlog.
with part as materialized (
    select case when $1::text is null then least(10001, 50000 / greatest(1, count(*))) else 10001 end as rows
    from gen_durable.limits
),
further as materialized (
    select p.name, b.limit_group, b.queue
    from gen_durable.limit_backlog b
    cross join lateral gen_durable._limit_pairs(b.limit_group) p
    where cardinality(b.names) > 1 and p.nth > 1
)
select l.name, l.at_once, l.per_key, l.rate, l.period, l.burst, l.key_rate, l.key_period, l.key_burst,
    l.declared::text as declared, l.changed_at, l.paused_at,
    case when l.closed_until > gen_durable.clock() then l.closed_until end as closed_until,
    r.claims as running, case when r.per_second is not null then r.tokens end as tokens,
    w.waiting, r.claims > 10000 or w.waiting >= (select rows from part) as is_lower_bound
from gen_durable.limits l
cross join lateral gen_durable._limit_room(array[l.name], array[''], true) r
cross join lateral (
    select count(*) as waiting from (
        (select 1 from gen_durable.instances i
         where i.status = 'awaiting_limit' and i.limit_group >= l.name || chr(1) and i.limit_group < l.name || chr(2)
         order by i.limit_group
         limit (select rows from part))
        union all
        (select 1 from further f
         cross join lateral (
             select 1 from gen_durable.instances i
             where i.status = 'awaiting_limit' and i.limit_group = f.limit_group and i.queue = f.queue
             limit (select rows from part)) w
         where f.name = l.name
         limit (select rows from part))
        limit (select rows from part)) counted) w
where $1::text is null or l.name = $1
order by l.name
limit 1000
