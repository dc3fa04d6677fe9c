-- Writes step results of instances that are in a lane or have a partition key, and promotes their
-- successors.
--   called by: store::step_results      index: instances_pkey; as _promote_successors
--   locks: as _write_step_results, then as _promote_successors
-- The first row has in `marks` the ids of the instances with a written result. Further rows are one
-- for each instance that runs ahead and has signals in its inbox or children, and one for each
-- successor that the worker runs at once.
create function gen_durable._write_keyed_step_results(
    p_ids bigint[], p_epochs bigint[], p_seqs bigint[], p_statuses text[], p_versions int[],
    p_steps text[], p_data text[], p_states text[], p_results text[], p_errors text[],
    p_attempt_changes int[], p_delays float8[], p_lock_timeout text,
    p_run_successors_of bigint[], p_worker uuid, p_lease_seconds float8, p_known text[]
) returns setof gen_durable.claimed
language plpgsql
as $$
declare
    written bigint[];
    inboxes text[];
    child_lists text[];
    info gen_durable.claimed;
begin
    select array_agg(w.id), array_agg(w.inbox), array_agg(w.children) into written, inboxes, child_lists
    from gen_durable._write_step_results(p_ids, p_epochs, p_seqs, p_statuses, p_versions, p_steps, p_data, p_states, p_results, p_errors,
        p_attempt_changes, p_delays, p_lock_timeout) w;
    if written is null then
        return;
    end if;
    -- Returns the ids of all instances with a written result in one row: a row for each would
    -- double the size of the reply.
    info.marks := written;
    info.eligible_at := gen_durable.clock();
    info.keyed := true;
    return next info;
    if cardinality(array_remove(inboxes, null)) > 0 or cardinality(array_remove(child_lists, null)) > 0 then
        info.marks := null;
        for info.id, info.inbox, info.children in
            select w.id, w.inbox, w.children from unnest(written, inboxes, child_lists) as w(id, inbox, children)
            where w.inbox is not null or w.children is not null
        loop
            return next info;
        end loop;
    end if;
    return query select h.*
    from gen_durable._promote_successors(written, p_run_successors_of, p_worker, p_lease_seconds, p_known) h;
end $$;
