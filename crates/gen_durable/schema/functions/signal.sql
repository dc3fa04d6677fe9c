-- Delivers a signal to an instance, by id or by key. Returns 'delivered', 'duplicate', 'no_target'
-- or 'inbox_full'.
--   called by: store::signal, signal_all, signal_or_start, SQL
--   index: instances_pkey or instances_key; signals_dedup, signals_inbox
--   locks: the target's row, always and first, so that a delivery and a commit that begins a wait
--   happen one after the other
create function gen_durable.signal(
    p_id bigint, p_tenant text, p_key text, p_machines text[], p_name text, p_payload jsonb, p_dedup text default null,
    p_inbox_max int default 1000
) returns text
language plpgsql
as $$
-- planner: pinned
declare
    target record;
    inbox record;
begin
    -- Locks the target of the signal without a condition on the status: with a condition, the
    -- statement would not wait for the lock of an instance that another transaction is about to set
    -- to waiting.
    if p_id is not null then
        select i.id, i.status, i.awaits, i.machine into target
        from gen_durable.instances i where i.id = p_id
        for no key update;
    else
        select i.id, i.status, i.awaits, i.machine into target
        from gen_durable.instances i where i.tenant = coalesce(p_tenant, '') and i.held_key = p_key
        for no key update;
    end if;
    if target.id is null or (p_machines is not null and target.machine <> all (p_machines)) then
        return 'no_target';
    end if;
    if target.status in ('done', 'failed', 'cancelled') then
        -- Returns 'duplicate' to a sender that repeats an accepted signal, even after the target
        -- has settled.
        return case when exists (select from gen_durable.signals s where s.target_id = target.id and s.dedup_key = p_dedup)
                    then 'duplicate' else 'no_target' end;
    end if;
    -- Limits the inbox of the target by number and by bytes, since every claim and every run-ahead
    -- commit of the target reads the whole inbox. An empty inbox accepts a signal of any size.
    select count(*) as signals, coalesce(sum(held.bytes), 0) as bytes into inbox
    from (select s.bytes from gen_durable.signals s where s.target_id = target.id and s.consumed_at is null limit p_inbox_max) held;
    if inbox.signals >= p_inbox_max
       or (inbox.signals > 0 and inbox.bytes + octet_length(p_payload::text) > gen_durable._inbox_bytes_max()) then
        -- Returns 'duplicate' to a sender that repeats an accepted signal, even if the inbox is
        -- full, so that the sender does not retry.
        return case when exists (select from gen_durable.signals s where s.target_id = target.id and s.dedup_key = p_dedup)
                    then 'duplicate' else 'inbox_full' end;
    end if;
    insert into gen_durable.signals (target_id, name, payload, dedup_key)
    values (target.id, p_name, p_payload, p_dedup)
    on conflict (target_id, dedup_key) where dedup_key is not null do nothing;
    if not found then
        return 'duplicate';
    end if;
    -- Decides whether the signal wakes the target by the row that the locking statement returned,
    -- and does not read `instances` again: the snapshot may be older than the lock.
    if target.status = 'awaiting_signal' and p_name = any (target.awaits) then
        update gen_durable.instances i
        set status = 'runnable', eligible_at = gen_durable.clock(), deadline_at = null, updated_at = gen_durable.clock(),
            partition_waiting = i.partition_key is not null,
            arrival_no = case when i.partition_key is not null then nextval('gen_durable.arrival_numbers') else i.arrival_no end
        where i.id = target.id;
        perform gen_durable._record_wakes(array[target.id], 'signal ' || p_name);
    end if;
    return 'delivered';
end $$;
