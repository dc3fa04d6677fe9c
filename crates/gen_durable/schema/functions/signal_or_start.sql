-- Delivers a signal to the instance that holds the key of p_start. If no instance holds the key,
-- inserts the instance p_start with the signal in its inbox. p_start has the form of an entry of
-- enqueue_all.
--   called by: store::signal::signal_or_start, SQL      index: instances_key; signals_dedup
--   locks: the holder's row; or no existing row, and waits for an open transaction that has
--   inserted the same key
-- Returns the outcome of the delivery ('delivered', 'duplicate', 'inbox_full', or 'no_target': the
-- holder is of another machine, or has settled and keeps its key), the id of the holder, and
-- whether this call has inserted the holder.
create function gen_durable.signal_or_start(
    p_start jsonb, p_name text, p_payload jsonb, p_dedup text default null, p_machines text[] default null,
    p_inbox_max int default 1000
) returns table (answer text, id bigint, is_new boolean, eligible_at timestamptz)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    v_tenant text := coalesce(p_start->>'tenant', '');
    v_key text := p_start->>'key';
    holder record;
begin
    if v_key is null or p_start->>'scope' = 'none' then
        raise exception 'signal_or_start needs an entry with a key that its instance holds' using errcode = 'null_value_not_allowed';
    end if;
    for tries in 1..100 loop
        answer := gen_durable.signal(null, v_tenant, v_key, p_machines, p_name, p_payload, p_dedup, p_inbox_max);
        if answer <> 'no_target' then
            -- `signal` has locked the target's row until the end of the transaction, so the target
            -- still holds its key.
            return query select answer, i.id, false, i.eligible_at from gen_durable.instances i
                where i.tenant = v_tenant and i.held_key = v_key;
            return;
        end if;
        select e.id, e.is_new, e.eligible_at into holder from gen_durable.enqueue_all(jsonb_build_array(p_start)) e;
        if holder.is_new then
            answer := gen_durable.signal(holder.id, null, null, null, p_name, p_payload, p_dedup, p_inbox_max);
            return query select answer, holder.id, true, holder.eligible_at;
            return;
        end if;
        -- Another transaction has inserted an instance with the key after `signal` found no target.
        -- The next pass of this loop delivers the signal to that instance, unless it cannot receive
        -- the signal.
        if exists (select from gen_durable.instances i
                   where i.id = holder.id and i.held_key = v_key
                     and (i.settled_at is not null or i.machine <> all (p_machines))) then
            return query select 'no_target', holder.id, false, holder.eligible_at;
            return;
        end if;
    end loop;
    raise exception 'the key % was taken and freed again 100 times during this call', v_key using errcode = 'serialization_failure';
end $$;
