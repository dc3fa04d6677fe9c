-- called by: store::lease::reap     index: workers_pkey, instances_held, instances_pkey
-- locks: the expired worker's row first (so that the worker cannot renew its lease before this
-- transaction ends), then instances by id, skipping rows that another transaction holds
-- Makes the instances that an expired worker had claimed runnable again. For an instance with
-- crash_count = 0 the crash counts (attempt + 1, crash_count + 1), whether the step had begun or
-- not. After that first crash `begin_step` records the start of the step, and a crash counts only
-- if the step had begun under the claim: an instance that the worker had claimed and not begun
-- becomes runnable without a count. At $3 crashes the reaper sets the instance aside as stuck: a
-- stuck instance does not settle, the engine does not call its handler and does not notify its
-- parent, it keeps its lane, and only an operator's retry makes it runnable again.
with expired as materialized (
    select w.id, w.host || '/' || w.pid as name from gen_durable.workers w
    where w.id = $1::text::uuid and w.lease_expires_at < statement_timestamp()
    for update
),
-- The locked version of each instance's row decides whether the crash counts, so that a step that
-- began after this statement's snapshot counts as begun.
held as materialized (
    select i.id, i.crash_count = 0 or i.begun_epoch is not distinct from i.claim_epoch as counts
    from gen_durable.instances i
    where i.locked_by = (select id from expired) and i.status = 'executing'
    order by i.id
    limit $2
    for no key update skip locked
),
reaped as (
    update gen_durable.instances i
    set status = case when blame.counts and i.crash_count + 1 >= $3 then 'stuck' else 'runnable' end::gen_durable.durable_status,
        claim_epoch = i.claim_epoch + 1,
        attempt = i.attempt + blame.counts::int,
        crash_count = i.crash_count + blame.counts::int,
        locked_by = null,
        lease_expires_at = null,
        eligible_at = greatest(i.eligible_at, gen_durable.clock()),
        last_error = case when blame.counts and i.crash_count + 1 >= $3
                          then 'the worker crashed ' || (i.crash_count + 1) || ' times while it ran the step' else i.last_error end,
        -- An instance that becomes runnable keeps its lane, and stays the partition holder if it
        -- was the holder. An instance that becomes stuck frees the partition: placement finds its
        -- arrival number and chooses the next holder.
        arrival_no = case when i.partition_key is not null and blame.counts and i.crash_count + 1 >= $3
                       then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
        updated_at = gen_durable.clock()
    from held blame
    where i.id = blame.id
    returning i.id, i.machine, i.step, i.attempt - blame.counts::int as attempt, i.status = 'stuck' as is_stuck, i.last_error, blame.counts,
        i.limit_group
),
-- Inserts history rows for the crashes that count, after the statement has updated all instances.
recorded as materialized (
    select gen_durable._record_history(together.ids, 'reap', (select name from expired))
    from (select array_agg(reaped.id) as ids from reaped where reaped.counts) together
    where together.ids is not null
)
select reaped.id, reaped.machine, reaped.step, reaped.attempt, reaped.is_stuck, reaped.last_error, reaped.limit_group
from reaped where (select count(*) from recorded) >= 0
