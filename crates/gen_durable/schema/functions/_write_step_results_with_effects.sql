-- Writes step results that do more than end a step: results that wait, spawn children, consume
-- signals, have effects, or settle a child.
--   called by: store::step_results::write, store::step_results::write_within
--   index: instances_pkey, instances_children, signals_inbox; as its parts
--   locks: the instances of the results by id, then parents by id, then lanes, then the targets of
--   signals by id, then the heads of event logs
-- The first statement returns the ids that it has written, and everything after it uses these ids
-- only: a worker that lost its claim changes nothing.
create function gen_durable._write_step_results_with_effects(p_results jsonb, p_lock_timeout text)
returns table (id bigint, status text, inbox text, children text)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    written bigint[];
    settled bigint[];
    freeing bigint[];
    -- Whether this call is a part of a larger transaction, which another statement commits.
    larger boolean := p_lock_timeout is null or pg_current_xact_id_if_assigned() is not null;
    _is_read_committed boolean := gen_durable._is_read_committed();
begin
    select array_agg(w.id) into written
    from (
        select array_agg((e->>'id')::bigint order by o) ids, array_agg((e->>'epoch')::bigint order by o) epochs,
            array_agg((e->>'seq')::bigint order by o) seqs, array_agg(e->>'status' order by o) statuses,
            array_agg((e->>'version')::int order by o) versions, array_agg(e->>'step' order by o) steps,
            array_agg((e->'data')::text order by o) datas, array_agg((e->'state')::text order by o) states,
            array_agg((e->'result')::text order by o) results, array_agg(e->>'error' order by o) errors,
            array_agg((e->>'attempt_change')::int order by o) attempt_changes, array_agg((e->>'delay')::float8 order by o) delays
        from jsonb_array_elements(p_results) with ordinality x(e, o)
    ) a
    cross join lateral gen_durable._write_step_results(a.ids, a.epochs, a.seqs, a.statuses, a.versions, a.steps, a.datas, a.states,
        a.results, a.errors, a.attempt_changes, a.delays, p_lock_timeout) w;
    if written is null then
        return;
    end if;
    if not _is_read_committed and jsonb_path_exists(p_results, '$[*].awaits') then
        raise exception 'a step''s transaction at % cannot end by waiting for a signal: a signal that was sent meanwhile would not be visible. End it with next(..) and wait in that step, or use read committed',
            current_setting('transaction_isolation') using errcode = 'feature_not_supported';
    end if;
    if jsonb_path_exists(p_results, '$[*].consumed') then
        perform gen_durable._consume_signals(p_results, written);
    end if;
    perform gen_durable._apply_effects(p_results, written);
    perform gen_durable._record_result_history(p_results, written);

    -- Notifies the parents of all children that this batch has settled, in one call. The ids come
    -- from the results and not from a condition on the table, which would allow a scan of the index
    -- of all settled instances.
    settled := array(select (e->>'id')::bigint from jsonb_array_elements(p_results) e
                     where e ? 'child' and (e->>'id')::bigint = any (written));
    if cardinality(settled) > 0 then
        perform gen_durable._notify_parents(settled);
    end if;

    -- The instances with step results in this batch that may free a lane or a partition key.
    freeing := array(select (e->>'id')::bigint from jsonb_array_elements(p_results) e
                     where e ? 'keyed' and (e->>'id')::bigint = any (written));
    if cardinality(freeing) > 0 and _is_read_committed then
        perform gen_durable._promote_successors(freeing, '{}', null, 0, '{}');
    elsif cardinality(freeing) > 0 then
        -- Above the isolation level read committed, this transaction does not see instances that
        -- arrived after its snapshot. The instances that free a lane or a partition key draw
        -- arrival numbers, so that the next placement promotes their successors.
        update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers')
        where i.id = any (freeing) and (i.settled_at is not null or i.partition_key is not null and i.status <> 'executing');
    end if;

    -- Locks rows of other instances last: the targets of signals, and then the heads of event logs,
    -- which stay locked until the commit.
    if jsonb_path_exists(p_results, '$[*].signals') then
        perform gen_durable._send_effects(p_results, written);
    end if;
    if jsonb_path_exists(p_results, '$[*].events') then
        perform gen_durable._record_result_events(p_results, written, larger);
    end if;

    return query
    select i.id, i.status::text,
        case when i.status = 'executing' then gen_durable._inbox_of(i.id) end,
        case when i.status = 'executing' and i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end
    from gen_durable.instances i
    where i.id = any (written);
end $$;
