-- Records when and why instances that waited or were stuck became runnable, in the last history row
-- of each. It changes only a row that describes the present state of the instance; an instance
-- without history has no such row.
--   called by: signal, _notify_parents, store::queue::retry_stuck
--   index: instances_pkey, history_pkey
--   locks: the history rows of instances that the caller has locked
create function gen_durable._record_wakes(p_ids bigint[], p_cause text) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    woken record;
begin
    -- Updates the history rows of the instances one by one: Postgres may plan a join while
    -- `history` is empty, and that plan would later read the whole table.
    for woken in
        -- Compares the status of the instance as text: a literal of the enum would allow this
        -- statement a scan of the index of all runnable instances.
        select i.id, i.step_seq, i.claim_epoch from gen_durable.instances i
        where i.id = any (p_ids) and i.status::text = 'runnable'
    loop
        update gen_durable.history t
        set woken_at = gen_durable.clock(), cause = p_cause
        where t.instance_id = woken.id and t.step_seq = woken.step_seq and t.claim_epoch = woken.claim_epoch
          and t.status in ('awaiting_signal', 'awaiting_children', 'stuck') and t.woken_at is null;
    end loop;
end $$;
