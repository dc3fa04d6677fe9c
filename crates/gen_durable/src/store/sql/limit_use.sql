-- called by: store::limit::use_of     index: instances_pkey; as _limit_room
-- locks: nothing
-- Returns the use of each bound that the instance $1 needs, and when a bound opens or has tokens
-- again.
select r.name, r.key, r.at_once, r.claims, r.rate, r.period, case when r.rate is not null then r.burst end as burst,
    case when r.per_second is not null then r.tokens end as tokens,
    coalesce(r.next_at = 'infinity', false) as paused,
    case when r.next_at > gen_durable.clock() and r.next_at < 'infinity' then r.next_at
         when r.per_second is not null and r.tokens < least(scopes.weight, r.burst)
         then gen_durable.clock() + make_interval(secs => (least(scopes.weight, r.burst) - r.tokens) / r.per_second) end as free_at
from (select i.weight, array_agg(s.name) as names, array_agg(s.key) as keys
      from (select i.limit_group, coalesce(i.limit_weight, 1)::float8 as weight from gen_durable.instances i where i.id = $1) i
      cross join lateral (
          select p.name, p.key from gen_durable._limit_pairs(i.limit_group) p
          union select p.name, '' from gen_durable._limit_pairs(i.limit_group) p) s
      group by i.weight) scopes
cross join lateral gen_durable._limit_room(scopes.names, scopes.keys, true) r
order by r.name, r.key
