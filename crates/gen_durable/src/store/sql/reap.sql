-- called by: store::lease::reap     index: workers_pkey, instances_held, instances_pkey; lanes_worker, instances_lane
-- locks: the expired worker's row first (so that it cannot renew its lease meanwhile), then
-- instances by id, then the lanes of the worker, in both cases skipping rows that another
-- transaction holds
-- Makes the claimed rows of an expired worker runnable again. The crash counts (attempt + 1,
-- crash_count + 1) for a row that no crashed worker has held since its last commit, whether its
-- step had begun or not. From then on `begin_step` records the start of its step, and a crash
-- counts only if the step had begun under this claim: a row that was only claimed ahead returns
-- unchanged. At $3 crashes the row is set aside as stuck: it is not failed, its handler is not
-- called, its parent is not notified, it keeps its lane, and only an operator's retry makes it
-- runnable again.
with dead as materialized (
    select w.id, w.host || '/' || w.pid as name from gen_durable.workers w
    where w.id = $1::text::uuid and w.lease_expires_at < statement_timestamp()
    for update
),
-- The locked version of a row decides whether the crash counts, so a step that began after this
-- statement's snapshot counts as begun.
held as materialized (
    select i.id, i.crash_count = 0 or i.begun_epoch is not distinct from i.claim_epoch as counts
    from gen_durable.instances i
    where i.locked_by = (select id from dead) and i.status = 'executing'
    order by i.id
    limit $2
    for no key update skip locked
),
-- The heads that the worker ran in its lanes without a claim. If the result of a head is being
-- committed, the row is skipped and handled by the next call: another instance is then at the head.
led as materialized (
    select h.* from dead cross join lateral gen_durable._worker_lane_heads(dead.id, '', '', 10000) h
),
running as materialized (
    select i.id, i.crash_count = 0 or i.begun_epoch is not distinct from i.claim_epoch as counts
    from gen_durable.instances i
    where i.id = any (array(select led.id from led where led.status = 'queued')) and i.status = 'queued' and (i.in_lane or i.partition_waiting)
    order by i.id
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
                          then 'its worker died ' || (i.crash_count + 1) || ' times while it ran' else i.last_error end,
        -- A runnable row keeps its lane and stays the partition holder. A row that was queued was
        -- not the holder, so it waits for the partition. A stuck row frees the partition: placement
        -- finds its arrival number and lets the next instance run.
        partition_waiting = i.status = 'queued' and i.partition_key is not null and not (blame.counts and i.crash_count + 1 >= $3),
        arrival_no = case when i.partition_key is not null and (i.status = 'queued' or blame.counts and i.crash_count + 1 >= $3)
                       then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
        updated_at = gen_durable.clock()
    from (select * from held union all select * from running) blame
    where i.id = blame.id
    returning i.id, i.machine, i.step, i.attempt - blame.counts::int as attempt, i.status = 'stuck' as is_stuck, i.last_error, blame.counts
),
-- The lanes of the worker. A lane that another transaction holds is skipped: a caller may be
-- cancelling a head that another worker runs there by now. A stale lane worker has no effect while
-- the head is not queued.
left_over as materialized (
    select l.tenant, l.key from led
    join gen_durable.lanes l on l.tenant = led.tenant and l.key = led.key
    -- Another worker may be the lane worker by now, and run the head there.
    where coalesce(l.worker_id, '00000000-0000-0000-0000-000000000000') = (select id from dead)
      and (led.id is null or led.id in (select id from reaped)
           or led.status <> 'queued' and led.locked_by is distinct from (select id from dead))
    order by l.tenant, l.key
    for update of l skip locked
),
unled as (
    update gen_durable.lanes l set worker_id = null
    from left_over free
    where l.tenant = free.tenant and l.key = free.key
),
-- Add history rows for the crashes that count, after all rows are written.
told as materialized (
    select gen_durable._record_history(together.ids, 'reap', (select name from dead))
    from (select array_agg(reaped.id) as ids from reaped where reaped.counts) together
    where together.ids is not null
)
select reaped.id, reaped.machine, reaped.step, reaped.attempt, reaped.is_stuck, reaped.last_error
from reaped where (select count(*) from told) >= 0
