-- Deletes the history of an instance except its last 1,000 commits. Callers call it with every
-- hundredth commit and with the commit after that, since a deadline, which does not call it, may
-- have been the hundredth. If both calls are missed, a call within the next thousand commits
-- deletes the rows. The range has a lower end too, so that the scan does not read dead index
-- entries of rows that were deleted before.
--   called by: store::step_results, _record_result_history      index: history_pkey
--   locks: the history rows of an instance that the caller has locked
create function gen_durable._trim_history(p_id bigint, p_seq bigint) returns void
language plpgsql
as $$
-- planner: pinned
begin
    delete from gen_durable.history t
    where t.instance_id = p_id and t.step_seq > p_seq - 2000 and t.step_seq <= p_seq - 1000;
end $$;
