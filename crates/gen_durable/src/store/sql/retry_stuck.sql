-- called by: store::queue::retry_stuck     index: instances_aside, instances_pkey
-- locks: instances by id, skipping rows that another transaction holds
-- Reads one page of stuck instances by id. Makes instances at steps that this build knows runnable,
-- except instances that this worker has failed to decode ($4). The statement does not retry an
-- instance that is stuck because its workers crashed (crash_count > 0): an operator has to. Returns
-- the last id of the page (null if there are no more stuck instances), and how many instances the
-- statement retried.
with page as materialized (
    select i.id, i.crash_count, gen_durable._knows_step($1::text[], i.machine, i.machine_version, i.step) as known
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
        partition_waiting = i.partition_key is not null,
        arrival_no = case when i.partition_key is not null then nextval('gen_durable.arrival_numbers') else i.arrival_no end
    from free
    where i.id = free.id
    returning i.id, gen_durable._record_wakes(array[i.id], 'another build')
)
select (select max(page.id) from page having count(*) = $3::int), (select count(*) from retried)
