-- Records in the last history row of instances that waited when and by what they were woken. Only
-- if that row describes the present state of the instance; a machine without history has none.
--   called by: signal, _notify_parents, store::queue::retry_stuck
--   index: instances_pkey, history_pkey
--   locks: the history rows, of instances that the caller has locked
create function gen_durable._record_wakes(p_ids bigint[], p_cause text) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    woken record;
begin
    -- One by one: a join that is planned while the history is empty would read all of it.
    for woken in
        -- As text: a literal of the status would allow a scan of the index of all runnable
        -- instances.
        select i.id, i.step_seq, i.claim_epoch from gen_durable.instances i
        where i.id = any (p_ids) and i.status::text = 'runnable'
    loop
        update gen_durable.history t
        set woken_at = gen_durable.clock(), cause = p_cause
        where t.instance_id = woken.id and t.step_seq = woken.step_seq and t.claim_epoch = woken.claim_epoch
          and t.status in ('awaiting_signal', 'awaiting_children', 'stuck') and t.woken_at is null;
    end loop;
end $$;
