-- called by: store::lease::reap     index: workers_pkey, instances_held, instances_pkey; lanes_led, instances_lane
-- locks: the expired worker's row first (so that it cannot renew meanwhile), then instances by id, skipping what another transaction
-- holds; then the lanes that the worker led, skipping those that are held
-- A death counts (attempt + 1, crash_count + 1) for a row that no worker has died with since its last commit, whether its step
-- had begun or not. From then on `begin_step` records the beginning of its step, and a death counts only if the step had begun under this
-- claim: a row that was claimed ahead returns as it was. At $3 deaths the row is set aside as stuck: it is not failed, its handler is
-- not called, its parent is not told, it keeps its lane, and only an operator's retry brings it back.
with dead as materialized (
    select w.id, w.host || '/' || w.pid as name from gen_durable.workers w
    where w.id = $1::text::uuid and w.lease_expires_at < statement_timestamp()
    for update
),
-- What counts is judged by the locked version of a row: a step that began after this statement's snapshot has begun.
held as materialized (
    select i.id, i.crash_count = 0 or i.begun_epoch is not distinct from i.claim_epoch as counts
    from gen_durable.instances i
    where i.locked_by = (select id from dead) and i.status = 'executing'
    order by i.id
    limit $2
    for no key update skip locked
),
-- What it ran in lanes that it led. One whose end it is about to commit is left for the next time: then another is at the head.
led as materialized (
    select h.* from dead cross join lateral gen_durable.led_heads(dead.id, '', '', 10000) h
),
running as materialized (
    select i.id, i.crash_count = 0 or i.begun_epoch is not distinct from i.claim_epoch as counts
    from gen_durable.instances i
    where i.id = any (array(select led.id from led where led.status = 'queued')) and i.status = 'queued' and (i.in_lane or i.held_back)
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
        -- Back to runnable it keeps its lane and its turn under its key; one that was queued had no turn, and waits for it. A stuck
        -- one leaves the turn to the next, by its number of arrival.
        held_back = i.status = 'queued' and i.partition_key is not null and not (blame.counts and i.crash_count + 1 >= $3),
        arrival = case when i.partition_key is not null and (i.status = 'queued' or blame.counts and i.crash_count + 1 >= $3)
                       then nextval('gen_durable.arrivals') else i.arrival end,
        updated_at = gen_durable.clock()
    from (select * from held union all select * from running) blame
    where i.id = blame.id
    returning i.id, i.fsm, i.step, i.attempt - blame.counts::int as attempt, i.status = 'stuck' as is_stuck, i.last_error, blame.counts
),
-- The lanes that it led. One that another transaction holds is passed over: a caller may have cancelled the head that another
-- worker runs there by now, and a lead that is left over means nothing as long as the head is not queued.
left_over as materialized (
    select l.tenant, l.key from led
    join gen_durable.lanes l on l.tenant = led.tenant and l.key = led.key
    -- Another worker may have come to lead it, and runs the head there.
    where coalesce(l.led_by, '00000000-0000-0000-0000-000000000000') = (select id from dead)
      and (led.id is null or led.id in (select id from reaped)
           or led.status <> 'queued' and led.locked_by is distinct from (select id from dead))
    order by l.tenant, l.key
    for update of l skip locked
),
unled as (
    update gen_durable.lanes l set led_by = null
    from left_over free
    where l.tenant = free.tenant and l.key = free.key
),
-- The story of the deaths that count, when all rows are written.
told as materialized (
    select gen_durable.tell(together.ids, 'reap', (select name from dead))
    from (select array_agg(reaped.id) as ids from reaped where reaped.counts) together
    where together.ids is not null
)
select reaped.id, reaped.fsm, reaped.step, reaped.attempt, reaped.is_stuck, reaped.last_error
from reaped where (select count(*) from told) >= 0
