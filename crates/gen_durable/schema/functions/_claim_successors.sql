-- Claims the successors in lanes and partitions that the calling worker may run at once, and
-- returns them. `_release_successors` makes the other successors runnable.
--   called by: _promote_successors      index: instances_pkey, signals_inbox; as _children_of
--   locks: the successors
-- p_freed names the ended instance of each successor, and p_queues the queue in which the worker
-- may run the successor (null: it may not). It runs under the planner settings of its callers (see
-- schema/planner.sql).
create function gen_durable._claim_successors(
    p_ids bigint[], p_freed bigint[], p_queues text[], p_run_successors_of bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns setof gen_durable.claimed
language plpgsql
as $$
begin
    return query
    update gen_durable.instances i
    set status = 'executing', locked_by = p_worker, partition_waiting = false,
        lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
        claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
    from unnest(p_ids, p_freed, p_queues) as n(id, freed, queue)
    -- A plain `partition_waiting` or `in_lane` would allow Postgres to plan this update as a scan
    -- of the index of all waiting instances or of all lanes, if it plans the statement while that
    -- index is empty. The `or` prevents both scans. A successor that was cancelled since the caller
    -- found it meets neither condition.
    where i.id = n.id and n.freed = any (p_run_successors_of) and (i.partition_waiting or i.status = 'queued' and i.in_lane)
      and i.queue = n.queue and i.eligible_at <= gen_durable.clock() and i.crash_count < 2
      -- Only a pick takes limits: it holds their locks. Only a pick shares a queue between tenants.
      and i.limit_group is null and not i.fair
      and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
      and not exists (select from gen_durable.queues q where q.name = n.queue and q.paused_at is not null)
    returning i.id, i.machine, i.machine_version, i.step, i.data::text, i.state::text, i.attempt,
        i.claim_epoch, i.step_seq, i.step_entry_seq, i.queue, i.priority, i.eligible_at,
        i.tenant, i.traceparent, true, i.crash_count, null::timestamptz, null::text[], i.awaits,
        (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
        case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end,
        i.parent_id, n.freed, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), null::int[],
        null::text, false;
end $$;
