-- Cancels the repeating timers of a wait in the transaction that ends the wait, whatever ends it: a
-- signal, the last child, a deadline, a cancel, an operator.
--   called by: the trigger instances_end_repeating_timers      index: timers_repeating
--   locks: the pending timers of the instance, after the instance's own row; a transaction that
--   fires one of these timers locks the instance's row first as well
create function gen_durable._end_repeating_timers() returns trigger
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.timers t set state = 'cancelled', ended_at = gen_durable.clock()
    where t.instance_id = new.id and t.state = 'pending';
    return null;
end $$;
create trigger instances_end_repeating_timers after update of status on gen_durable.instances
    for each row
    when (old.has_repeating_timers and old.status in ('awaiting_signal', 'awaiting_children') and new.status <> old.status)
    execute function gen_durable._end_repeating_timers();
