-- called by: store::queue::retry_stuck     index: instances_aside, instances_pkey
-- locks: instances by id, skipping what is held
-- One page of stuck rows by id: those that this build knows and has not failed to decode become runnable. A row that was set aside
-- because its processes died (crash_count > 0) is an operator's to retry. Returns the last id of the page (null: there are no more),
-- and how many were retried.
with page as materialized (
    select i.id, i.crash_count, gen_durable._knows_step($1::text[], i.fsm, i.fsm_version, i.step) as known
    from gen_durable.instances i
    where i.status = 'stuck' and i.id > $2
    order by i.id
    limit $3::int
),
free as materialized (
    select i.id
    from page
    join gen_durable.instances i on i.id = page.id
    where page.known and page.crash_count = 0 and i.status = 'stuck'
      and not exists (select from unnest($4::bigint[]) as tried(id) where tried.id = page.id)
    order by i.id
    for no key update of i skip locked
),
retried as (
    update gen_durable.instances i
    set status = 'runnable', eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock(),
        held_back = i.partition_key is not null,
        arrival = case when i.partition_key is not null then nextval('gen_durable.arrivals') else i.arrival end
    from free
    where i.id = free.id
    returning i.id, gen_durable.tell_woken(array[i.id], 'another build')
)
select (select max(page.id) from page having count(*) = $3::int), (select count(*) from retried)
