-- called by: store::events::trim     index: events_log, projections_pkey, projection_runs_open
-- locks: the events that this statement deletes
-- Deletes old events of a tenant. Never deletes the last event, since other statements read the
-- last position of the log from that event. Unless forced ($4), deletes no event that a projection
-- or a run of this tenant has not read yet; a projection in $6 that has no scope for this tenant
-- counts as having read nothing.
with floor as materialized (
    select least(
        $2,
        (select e.position - 1 from gen_durable.events e
         where e.tenant = $1 and e.position is not null order by e.position desc limit 1),
        case when not $4 then (select min(p.position) from gen_durable.projections p where p.tenant = $1) end,
        case when not $4 and exists (
            select from unnest($6::text[]) as follower(name)
            where not exists (
                select from gen_durable.projections p where p.tenant = $1 and p.projection = follower.name)) then 0 end,
        case when not $4 then (select min(r.position) from gen_durable.projection_runs r
                               where r.tenant = $1 and r.finished_at is null) end) as position
),
old as materialized (
    select e.arrival_no from gen_durable.events e
    where e.tenant = $1 and e.position <= (select position from floor)
      and ($3::float8 is null or e.at < gen_durable.clock() - make_interval(secs => $3))
    order by e.position
    limit $5
),
gone as (
    delete from gen_durable.events e using old where e.arrival_no = old.arrival_no returning 1
)
select count(*) from gone
