-- Inserts the repeating timers of a wait, unless the same commit has already ended the wait (by a
-- signal in the inbox, or because no child was spawned).
--   called by: _apply_effects      index: instances_pkey
--   locks: the instance's row, which the caller has locked
create function gen_durable._insert_repeating_timers(p_instance bigint, p_repeating jsonb) returns void
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.timers (instance_id, await_seq, due_at, anchor_at, remaining, cycle, missed, new_instance)
    select i.id, i.step_seq, greatest((r->>'due')::timestamptz, gen_durable.clock()), (r->>'anchor')::timestamptz,
        (r->>'remaining')::int, r->>'cycle', r->>'missed', r->'new_instance'
    from gen_durable.instances i
    cross join jsonb_array_elements(p_repeating) r
    where i.id = p_instance and i.status in ('awaiting_signal', 'awaiting_children');
    if found then
        update gen_durable.instances i set has_repeating_timers = true where i.id = p_instance and not i.has_repeating_timers;
    end if;
end $$;
