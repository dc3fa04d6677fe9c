-- called by: store::queue::stuck_page      index: instances_aside
-- locks: nothing
-- Reads one page of stuck instances by id. Returns the ids of the instances that this build may
-- retry: they are at steps that it knows, and are not stuck because their workers crashed
-- (crash_count > 0; an operator has to retry those). Also returns the last id of the page, or null
-- if there are no more stuck instances.
with page as materialized (
    select i.id, i.crash_count, gen_durable._knows_step($1::text[], i.machine, i.machine_version, i.step) as known
    from gen_durable.instances i
    where i.status = 'stuck' and i.id > $2
    order by i.id
    limit $3::int
)
select (select max(page.id) from page having count(*) = $3::int) as last_id,
       (select coalesce(array_agg(page.id), '{}') from page where page.known and page.crash_count = 0) as ids
