-- called by: store::scopes::list     index: projections_pkey, events_log
-- locks: nothing
select p.tenant, p.projection, p.partition, p.version, p.generation, p.position, h.log_position, p.status, p.attempts, p.retry_at,
    p.last_error, p.owner::text as owner, w.host, w.pid, coalesce(p.owned_until > statement_timestamp(), false) as owned,
    (select extract(epoch from gen_durable.clock() - e.at)::float8 from gen_durable.events e
     where e.tenant = p.tenant and e.position = p.position + 1) as lag_seconds,
    p.replaying_to, p.applied, p.digest, p.digest_position, p.digest_at, p.updated_at,
    exists (select from gen_durable.workers l where l.lease_expires_at > statement_timestamp() and p.projection = any (l.projections)) as served,
    case when p.offered > p.version then p.offered end as offered
from gen_durable.projections p
cross join lateral (
    select coalesce((
        select e.position from gen_durable.events e
        where e.tenant = p.tenant and e.position is not null order by e.position desc limit 1), 0) as log_position
) h
left join gen_durable.workers w on w.id = p.owner
where ($1::text is null or p.tenant = $1) and ($2::text is null or p.projection = $2)
  and ($3::text is null or (p.tenant, p.projection) > ($3, $4))
order by p.tenant, p.projection
limit $5
