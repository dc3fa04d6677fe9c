-- Writes step results into their instances, one array entry per result, all in one statement.
--   called by: store::step_results, _write_keyed_step_results, _write_step_results_with_effects
--   index: instances_pkey, signals_inbox
--   locks: instances by id, in the order of the arrays (the caller sorts them), for at most
--   p_lock_timeout
-- The update finds a row by (id, claim_epoch, step_seq). There is no condition on the status: the
-- epoch implies the claim, and a literal would allow a scan of the index of executing rows. A value
-- of p_attempt_changes below 0 means that the result enters a step; the attempts of that step begin
-- at 0. An array may be empty if every value is null (or 0), which saves the copy of its values.
-- Returns the ids of the updated instances; the worker has lost its claim on the others.
create function gen_durable._write_step_results(
    p_ids bigint[], p_epochs bigint[], p_seqs bigint[], p_statuses text[], p_versions int[],
    p_steps text[], p_data text[], p_states text[], p_results text[], p_errors text[],
    p_attempt_changes int[], p_delays float8[], p_lock_timeout text
) returns table (id bigint, inbox text, children text)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
begin
    if p_lock_timeout is not null then
        perform gen_durable._require_read_committed();
        perform set_config('lock_timeout', p_lock_timeout, true);
    end if;
    -- A new connection plans the update with empty arrays (warm.sql). It does not do so while the
    -- table is empty: if Postgres knows from a vacuum that the table is empty, it would plan a scan
    -- of the whole primary key, and keep that plan while the table grows.
    if coalesce(cardinality(p_ids), 0) = 0 and not exists (select from gen_durable.instances) then
        return;
    end if;
    -- Ensures that the results are durable before anything that depends on them begins, even if the
    -- role or the database turns synchronous_commit off. This holds for a step's own transaction
    -- too.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return query
    update gen_durable.instances i
    set status = e.status,
        machine_version = coalesce(e.version, i.machine_version),
        step = coalesce(e.step, i.step),
        data = case when e.step is null then i.data else e.data::jsonb end,
        state = coalesce(e.state::jsonb, i.state),
        result = e.result::jsonb,
        last_error = case when e.error is not null then e.error
                          when e.attempt_change < 0 or e.status = 'done' then null
                          else i.last_error end,
        attempt = case when e.attempt_change < 0 then 0 else i.attempt + coalesce(e.attempt_change, 0) end,
        -- A retry that the step asked for has no error, and does not count as a failure of the
        -- step.
        failures = case when e.attempt_change < 0 then 0 when e.attempt_change > 0 and e.error is not null then i.failures + 1 else i.failures end,
        step_entry_seq = case when e.attempt_change < 0 then i.step_seq + 1 else i.step_entry_seq end,
        -- A retry keeps `awaits`, since its next run receives the same signals. A result that
        -- enters a step or settles the instance clears `awaits`.
        awaits = case when e.attempt_change < 0 or e.status in ('done', 'failed', 'cancelled') then null else i.awaits end,
        -- An instance with a partition key that ends a step waits behind all others of that key. An
        -- instance in a lane that settles leaves the lane, unless it has failed and blocks the
        -- lane.
        partition_waiting = e.status = 'runnable' and i.partition_key is not null,
        in_lane = i.in_lane and (e.status not in ('done', 'failed', 'cancelled') or (e.status = 'failed' and i.lane_blocks)),
        -- A run-ahead commit changes no indexed column, so the new version of the row stays on its
        -- page, and no index is written.
        eligible_at = case when e.status = 'runnable'
                           then gen_durable.clock() + make_interval(secs => coalesce(e.delay, 0)) else i.eligible_at end,
        step_seq = i.step_seq + 1,
        claim_epoch = case when e.status = 'executing' then i.claim_epoch else i.claim_epoch + 1 end,
        crash_count = 0,
        locked_by = case when e.status = 'executing' then i.locked_by end,
        lease_expires_at = case when e.status = 'executing' then i.lease_expires_at end,
        settled_at = case when e.status in ('done', 'failed', 'cancelled') then gen_durable.clock() end,
        updated_at = gen_durable.clock()
    from (select * from unnest(p_ids, p_epochs, p_seqs, p_statuses::gen_durable.durable_status[], p_versions, p_steps, p_data,
                               p_states, p_results, p_errors, p_attempt_changes, p_delays)
              as r(id, epoch, seq, status, version, step, data, state, result, error, attempt_change, delay)
          -- Postgres expects one row of a LIMIT by a parameter, and so looks up each row by its id,
          -- also if it knows of few rows in the table.
          limit cardinality(p_ids)) e
    where i.id = e.id and i.claim_epoch = e.epoch and i.step_seq = e.seq
    -- Returns the inbox of each instance that runs ahead, with the signals that arrived during its
    -- last step.
    returning i.id,
        case when e.status = 'executing' then (select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
         from gen_durable.signals s where s.target_id = i.id and s.consumed_at is null) end,
        case when e.status = 'executing' and i.join_generation > 0
             then gen_durable._children_of(i.id, i.join_generation) end;
end $$;
