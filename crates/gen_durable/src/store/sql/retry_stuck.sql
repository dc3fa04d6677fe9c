-- called by: store::queue::retry_stuck     index: instances_pkey
-- locks: instances by id, skipping rows that another transaction holds
-- Makes these instances runnable if they are still stuck, and not because their workers crashed.
-- Returns how many instances the statement retried.
with free as materialized (
    select i.id
    from gen_durable.instances i
    where i.id = any ($1::bigint[]) and i.status = 'stuck' and i.crash_count = 0
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
select count(*) from retried
