-- Records a change from outside a step (a cancel, a reap) in the history of instances, even if the
-- machine's policy records no step results.
--   called by: _cancel_live, store::lease::reap, _set_aside_refused      index: instances_pkey
--   locks: no existing row; the caller has locked the instances
create function gen_durable._record_history(p_ids bigint[], p_outcome text, p_worker text default null) returns void
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.history
        (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step, error, worker)
    select i.id, i.step_seq, i.claim_epoch, gen_durable.clock(),
        -- The reaper has already counted the crash as an attempt, so the history row gets the
        -- number of the attempt that crashed.
        i.attempt - (p_outcome = 'reap')::int, i.status, p_outcome, i.step, i.step,
        case when i.settled_at is not null or i.status = 'stuck' then left(i.last_error, 1000) end, p_worker
    from gen_durable.instances i
    where i.id = any (p_ids);
end $$;
