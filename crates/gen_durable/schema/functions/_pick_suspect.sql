-- Claims at most one suspect (an instance with a crash_count of two or more) and returns it. A
-- worker runs one suspect at a time, so that a further crash can be attributed to that suspect.
--   called by: _pick      index: instances_suspects, instances_pkey; as _inbox_of, _children_of
--   locks: the suspect, FOR NO KEY UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._pick_suspect(p_queues text[], p_known text[], p_worker uuid, p_lease_seconds float8)
returns setof gen_durable.claimed
language plpgsql
as $$
begin
    return query
    with candidate as materialized (
        select found.id
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            select i.id
            from gen_durable.instances i
            where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting
              and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.eligible_at, i.id
            limit 1
            for no key update skip locked
        ) found
        where not exists (select from gen_durable.queues q where q.name = wanted.queue and q.paused_at is not null)
        limit 1
    )
    update gen_durable.instances i
    set status = 'executing', locked_by = p_worker,
        lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
        claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
    from candidate
    where i.id = candidate.id
    returning i.id, i.machine, i.machine_version, i.step, i.data::text, i.state::text, i.attempt,
        i.claim_epoch, i.step_seq, i.step_entry_seq, i.queue, i.priority, i.eligible_at,
        i.tenant, i.traceparent, i.partition_key is not null or i.lane_key is not null, i.crash_count,
        null::timestamptz, null::text[], i.awaits, gen_durable._inbox_of(i.id),
        case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end,
        i.parent_id, null::bigint, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), null::int[];
end $$;
