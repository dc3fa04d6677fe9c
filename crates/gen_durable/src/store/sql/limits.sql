-- called by: store::limit::list     index: limits_pkey, instances_limit_waiting, limit_backlog_pkey; as _limit_room
-- locks: nothing
-- Returns the limits, at most 1,000, or the one with the name $1: bounds and use. Counts up to
-- 10,001.
select l.name, l.at_once, l.per_key, l.rate, l.period, l.burst, l.key_rate, l.key_period, l.key_burst,
    l.declared::text as declared, l.changed_at, l.paused_at,
    case when l.closed_until > gen_durable.clock() then l.closed_until end as closed_until,
    r.claims as running, case when r.per_second is not null then r.tokens end as tokens,
    (select count(*) from (
        select 1 from gen_durable.limit_backlog b
        cross join lateral (
            select 1 from gen_durable.instances i
            where i.status = 'awaiting_limit' and i.limit_group = b.limit_group and i.queue = b.queue
            limit 10001) w
        where l.name = any (b.names)
        limit 10001) waiting) as waiting
from gen_durable.limits l
cross join lateral gen_durable._limit_room(array[l.name], array[''], true) r
where $1::text is null or l.name = $1
order by l.name
limit 1000
