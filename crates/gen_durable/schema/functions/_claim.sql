-- Claims instances for a worker and returns them. The caller has locked their rows.
--   called by: _pick_limited, _pick_suspect
--   index: instances_pkey, signals_inbox; as _children_of      locks: nothing further
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._claim(p_ids bigint[], p_waited boolean, p_worker uuid, p_lease_seconds float8)
returns setof gen_durable.claimed
language plpgsql
as $$
begin
    return query
    update gen_durable.instances i
    set status = 'executing', locked_by = p_worker,
        lease_expires_at = statement_timestamp() + make_interval(secs => p_lease_seconds),
        claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
    from (select c.id from unnest(p_ids) as c(id) limit cardinality(p_ids)) chosen
    where i.id = chosen.id
    returning i.id, i.machine, i.machine_version, i.step, i.data::text, i.state::text, i.attempt,
        i.claim_epoch, i.step_seq, i.step_entry_seq, i.queue, i.priority, i.eligible_at,
        i.tenant, i.traceparent, i.partition_key is not null or i.lane_key is not null, i.crash_count,
        null::timestamptz, null::text[], i.awaits,
        (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
        case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end,
        i.parent_id, null::bigint, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), null::int[],
        i.limit_group, p_waited;
end $$;
