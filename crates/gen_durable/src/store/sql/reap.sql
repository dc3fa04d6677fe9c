-- called by: store::lease::reap     index: workers_pkey, instances_held, instances_pkey; lanes_led, instances_lane
-- locks: the dead worker's row first (so that it cannot come back meanwhile), then parents of those that fail, then instances by id,
-- both skipping what is held: a child whose parent somebody holds is left for the next time; then
-- the lanes of those that failed, then those that it led, skipping what is held
-- The attempt rises; the step's handler is not called. A row that was run alone and took its process with it once more
-- has failed; a row that was only there goes on.
with dead as materialized (
    select w.id, w.host || '/' || w.pid as name from gen_durable.workers w
    where w.id = $1::text::uuid and w.lease_expires_at < statement_timestamp()
    for update
),
parents as materialized (
    select p.id from gen_durable.instances p
    where p.id = any (array(select c.parent_id from gen_durable.instances c
                            where c.locked_by = (select id from dead) and c.status = 'executing'
                              and c.crash_count + 1 >= $3 and c.parent_generation is not null
                            union
                            select c.parent_id from dead cross join lateral gen_durable.led_heads(dead.id, '', '', 10000) h
                            join gen_durable.instances c on c.id = h.id
                            where h.status = 'queued' and c.crash_count + 1 >= $3 and c.parent_generation is not null))
    order by p.id
    for no key update skip locked
),
held as materialized (
    select i.id
    from gen_durable.instances i
    where i.locked_by = (select id from dead) and i.status = 'executing'
      and (i.crash_count + 1 < $3 or i.parent_generation is null or i.parent_id = any (array(select id from parents)))
    order by i.id
    limit $2
    for no key update skip locked
),
-- What it ran in lanes that it led. One whose end it is about to commit is left for the next time: then another is at the head.
led as materialized (
    select h.* from dead cross join lateral gen_durable.led_heads(dead.id, '', '', 10000) h
),
running as materialized (
    select i.id
    from gen_durable.instances i
    where i.id = any (array(select led.id from led where led.status = 'queued')) and i.status = 'queued' and (i.in_lane or i.held_back)
      and (i.crash_count + 1 < $3 or i.parent_generation is null or i.parent_id = any (array(select id from parents)))
    order by i.id
    for no key update skip locked
),
reaped as (
    update gen_durable.instances i
    set status = case when i.crash_count + 1 >= $3 then 'failed' else 'runnable' end::gen_durable.durable_status,
        claim_epoch = i.claim_epoch + 1,
        attempt = i.attempt + 1,
        crash_count = i.crash_count + 1,
        locked_by = null,
        lease_expires_at = null,
        eligible_at = case when i.crash_count + 1 >= $3 then i.eligible_at
                           else greatest(i.eligible_at, gen_durable.clock()) end,
        last_error = case when i.crash_count + 1 >= $3
                          then 'its process died ' || (i.crash_count + 1) || ' times' else i.last_error end,
        finished_at = case when i.crash_count + 1 >= $3 then gen_durable.clock() end,
        -- Back to runnable it keeps its lane and its turn; one that was queued had none, and waits for it. Settled, it leaves both
        -- to who waits.
        held_back = i.status = 'queued' and i.partition_key is not null and i.crash_count + 1 < $3,
        in_lane = i.in_lane and (i.crash_count + 1 < $3 or i.lane_blocks),
        arrival = case when i.crash_count + 1 >= $3 and (i.in_lane or i.partition_key is not null)
                            or i.status = 'queued' and i.partition_key is not null
                       then nextval('gen_durable.arrivals') else i.arrival end,
        updated_at = gen_durable.clock()
    from (select id from held union all select id from running) held
    where i.id = held.id
    returning i.id, i.fsm, i.status = 'failed' as failed, i.parent_id, i.tenant, i.lane_key
),
-- Lanes whose head has failed now: nobody runs who is next there. The head was ours to end, so whoever holds the lane does not
-- hold it for long.
ended as materialized (
    select l.tenant, l.key from reaped
    join gen_durable.lanes l on l.tenant = reaped.tenant and l.key = reaped.lane_key
    where reaped.failed and reaped.lane_key is not null
    order by l.tenant, l.key
    for update of l
),
-- The lanes that it led. One that somebody holds is passed over: a caller's transaction may have cancelled the head that another
-- worker runs there by now, and a lead that is left over means nothing as long as the head is not queued.
left_over as materialized (
    select l.tenant, l.key from led
    join gen_durable.lanes l on l.tenant = led.tenant and l.key = led.key
    where (select count(*) from ended) >= 0
      -- Somebody else may have come to lead it, and run who is next there.
      and coalesce(l.led_by, '00000000-0000-0000-0000-000000000000') = (select id from dead)
      and (led.id is null or led.id in (select id from reaped)
           or led.status <> 'queued' and led.locked_by is distinct from (select id from dead))
    order by l.tenant, l.key
    for update of l skip locked
),
unled as (
    update gen_durable.lanes l set led_by = null
    from (select * from ended union select * from left_over) free
    where l.tenant = free.tenant and l.key = free.key
),
-- Parents and the story, when all are written and not one by one: a parent may be among them.
together as materialized (
    select array_agg(reaped.id) as ids, array_agg(reaped.id) filter (where reaped.failed and reaped.parent_id is not null) as children
    from reaped
),
told as materialized (
    select case when together.children is not null then gen_durable.tell_parents(together.children) end,
        gen_durable.tell(together.ids, 'reap', (select name from dead))
    from together where together.ids is not null
)
select reaped.id, reaped.fsm, reaped.failed from reaped where (select count(*) from told) > 0
