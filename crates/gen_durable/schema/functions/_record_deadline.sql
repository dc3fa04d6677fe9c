-- Records in the history that a wait or a join has reached its deadline, if the history has a row
-- for the beginning of the wait.
--   called by: _expire      index: history_pkey
--   locks: no existing row
create function gen_durable._record_deadline(p_id bigint, p_seq bigint, p_epoch bigint, p_step text) returns void
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.history
        (instance_id, step_seq, claim_epoch, at, attempt, status, outcome, from_step, to_step)
    select p_id, p_seq, p_epoch, gen_durable.clock(), 0, 'runnable', 'deadline', t.to_step, p_step
    from gen_durable.history t
    where t.instance_id = p_id and t.step_seq = p_seq - 1 and t.claim_epoch = p_epoch;
end $$;
