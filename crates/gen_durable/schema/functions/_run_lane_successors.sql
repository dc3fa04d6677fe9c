-- Returns the successors in lanes that the calling worker runs at once, without a claim of their
-- own. A successor that has left its lane or is not queued any more is missing from the result.
--   called by: _promote_successors      index: instances_pkey, signals_inbox; as _children_of
--   locks: the successors, FOR NO KEY UPDATE: a cancel and this transaction cannot change one at
--   the same time
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._run_lane_successors(p_ids bigint[], p_freed bigint[]) returns setof gen_durable.claimed
language plpgsql
as $$
begin
    return query
    select i.id, i.machine, i.machine_version, i.step, i.data::text, i.state::text, i.attempt,
        i.claim_epoch, i.step_seq, i.step_entry_seq, i.queue, i.priority, i.eligible_at,
        i.tenant, i.traceparent, true, i.crash_count, null::timestamptz, null::text[], i.awaits,
        (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null),
        case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end,
        i.parent_id, n.freed, null::bigint[], i.failures, nextval('gen_durable.fencing_tokens'), true
    from unnest(p_ids, p_freed) as n(id, freed)
    join gen_durable.instances i on i.id = n.id
    -- A plain `in_lane` would allow a scan of the index of all lanes, if Postgres plans this
    -- statement while no instance is in a lane. The `or` prevents that scan and does not change the
    -- rows that the statement finds: a queued instance never has `partition_waiting`.
    where i.status = 'queued' and (i.in_lane or i.partition_waiting)
    for no key update of i;
end $$;
