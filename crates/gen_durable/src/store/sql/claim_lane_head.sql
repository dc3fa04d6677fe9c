-- called by: store::lease::claim_lane_head     index: instances_pkey
-- locks: instances by id, in order, skipping rows that another transaction holds, because that
-- transaction is probably committing the step result of the instance
-- Claims instances that this worker has run for a while as heads of its lanes, without a claim, so
-- that operators see the instances as executing. The claim epoch stays, so that the worker can
-- still commit the step. Returns the ids that need no further try: instances that this statement
-- claimed, and instances that this worker no longer runs.
with free as materialized (
    select i.id, i.claim_epoch, i.status from gen_durable.instances i
    where i.id = any ($1)
    order by i.id
    for no key update skip locked
),
claimed as (
    update gen_durable.instances i
    set status = 'executing', locked_by = $3::text::uuid,
        lease_expires_at = statement_timestamp() + make_interval(secs => $4), updated_at = gen_durable.clock()
    from free
    join unnest($1::bigint[], $2::bigint[]) as claim(id, epoch) on claim.id = free.id and claim.epoch = free.claim_epoch
    where i.id = free.id and free.status = 'queued'
)
select claim.id from unnest($1::bigint[]) as claim(id)
left join free on free.id = claim.id
where free.id is not null or not exists (select from gen_durable.instances i where i.id = claim.id)
