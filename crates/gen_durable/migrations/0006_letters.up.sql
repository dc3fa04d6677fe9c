-- 0006: letters in numbers, and letters that start whom they mean; and the acts for people who type them.

-- Enqueue one instance: select gen_durable.enqueue('send_receipt', '{"order": 42}'). Everything else by name.
--   called by: SQL      index: instances_key, if it has a key
--   locks: nothing that exists; waits for a transaction that is about to take the same key
-- Answers its id; if the key is taken, its holder's.
create function gen_durable.enqueue(
    machine text, state jsonb default '{}', step text default 'run', data jsonb default null, version int default 1,
    queue text default 'default', priority int default 0, tenant text default '', delay interval default null,
    at timestamptz default null, key text default null, scope text default 'live', traceparent text default null
) returns bigint
language sql
set search_path = gen_durable, pg_temp
as $$
    -- What is null is left out, but never inside of what the machine holds.
    select e.id from gen_durable.enqueue_all(jsonb_build_array(
        jsonb_build_object('fsm', machine, 'step', step, 'state', state)
        || case when data is null then '{}' else jsonb_build_object('data', data) end
        || jsonb_strip_nulls(jsonb_build_object('version', version, 'queue', queue, 'priority', priority, 'tenant', tenant,
            'delay', extract(epoch from delay), 'at', at, 'key', key, 'scope', scope, 'traceparent', traceparent)))) e
$$;

-- What became of an instance: its status, what it settled with, and its last error. No row: there is no such instance.
--   called by: SQL      index: instances_pkey
--   locks: nothing
create function gen_durable.result(id bigint) returns table (status text, result jsonb, error text)
language sql stable
set search_path = gen_durable, pg_temp
as $$
    select i.status::text, i.result, i.last_error from gen_durable.instances i where i.id = $1
$$;

-- Deliver a letter, by id or by key.
--   called by: store::signal, conclude, SQL      index: instances_pkey or instances_key; signals_dedup
--   locks: the target's row, always and first: a park and a delivery that meet wait for one another
-- Answers 'delivered', 'duplicate', 'no_target' or 'inbox_full'.
create function gen_durable.signal(
    p_id bigint, p_tenant text, p_key text, p_machines text[], p_name text, p_payload jsonb, p_dedup text default null,
    p_inbox_max int default 1000
) returns text
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
declare
    target record;
    inbox record;
begin
    -- Locked unconditionally: a test of the status here would skip a row that is about to park, without waiting for it.
    if p_id is not null then
        select i.id, i.status, i.awaits, i.fsm into target
        from gen_durable.instances i where i.id = p_id
        for no key update;
    else
        select i.id, i.status, i.awaits, i.fsm into target
        from gen_durable.instances i where i.tenant = coalesce(p_tenant, '') and i.correlation_guard = p_key
        for no key update;
    end if;
    if target.id is null or (p_machines is not null and target.fsm <> all (p_machines)) then
        return 'no_target';
    end if;
    if target.status in ('done', 'failed', 'cancelled') then
        -- A sender that repeats an accepted letter is told so, also after the target has settled.
        return case when exists (select from gen_durable.signals s where s.target_id = target.id and s.dedup_key = p_dedup)
                    then 'duplicate' else 'no_target' end;
    end if;
    -- Every claim and every run-ahead commit of the target reads the whole inbox: it is bounded by number and by bytes. An empty
    -- inbox takes a letter of any size.
    select count(*) as letters, coalesce(sum(held.bytes), 0) as bytes into inbox
    from (select s.bytes from gen_durable.signals s where s.target_id = target.id and s.consumed_at is null limit p_inbox_max) held;
    if inbox.letters >= p_inbox_max
       or (inbox.letters > 0 and inbox.bytes + octet_length(p_payload::text) > gen_durable.inbox_bytes_max()) then
        -- A sender who repeats himself is told so, also when there is no room for another: he need not come again.
        return case when exists (select from gen_durable.signals s where s.target_id = target.id and s.dedup_key = p_dedup)
                    then 'duplicate' else 'inbox_full' end;
    end if;
    insert into gen_durable.signals (target_id, name, payload, dedup_key)
    values (target.id, p_name, p_payload, p_dedup)
    on conflict (target_id, dedup_key) where dedup_key is not null do nothing;
    if not found then
        return 'duplicate';
    end if;
    -- By what the lock returned, never by the table: the snapshot may be older than the lock.
    if target.status = 'awaiting_signal' and p_name = any (target.awaits) then
        update gen_durable.instances i
        set status = 'runnable', eligible_at = gen_durable.clock(), deadline_at = null, updated_at = gen_durable.clock(),
            held_back = i.partition_key is not null,
            arrival = case when i.partition_key is not null then nextval('gen_durable.arrivals') else i.arrival end
        where i.id = target.id;
        perform gen_durable.tell_woken(array[target.id], 'signal ' || p_name);
    end if;
    return 'delivered';
end $$;

-- Deliver letters: [{"id" or "tenant" and "key", "machines", "name", "payload", "dedup"}, …].
--   called by: store::signal::deliver_all, conclude, SQL      index: instances_pkey, instances_key; signals_dedup
--   locks: the targets' rows by id, all of them before the first letter: two batches in opposite order do not deadlock
-- Answers one row a letter: its place, and 'delivered', 'duplicate', 'no_target' or 'inbox_full'.
create function gen_durable.signal_all(p_letters jsonb, p_inbox_max int default 1000)
returns table (place int, answer text)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    letter record;
    meant bigint[];
begin
    -- Whom each one means, in one look.
    meant := array(
        select coalesce((l.value->>'id')::bigint, (
            select k.id from gen_durable.instances k
            where k.tenant = coalesce(l.value->>'tenant', '') and k.correlation_guard = l.value->>'key'))
        from jsonb_array_elements(p_letters) with ordinality l(value, place)
        order by l.place);
    perform i.id from gen_durable.instances i where i.id = any (meant) order by i.id for no key update;
    for letter in
        select l.value, l.place::int as place from jsonb_array_elements(p_letters) with ordinality l(value, place) order by l.place
    loop
        place := letter.place;
        -- By id, now that we have its row: a holder that has settled since then is nobody. Whoever holds the key by now would be
        -- locked out of order.
        answer := gen_durable.signal(meant[letter.place], null, null,
            case when letter.value ? 'machines' then array(select jsonb_array_elements_text(letter.value->'machines')) end,
            letter.value->>'name', coalesce(letter.value->'payload', 'null'), letter.value->>'dedup', p_inbox_max);
        return next;
    end loop;
end $$;

-- Tell whoever holds the key; if nobody does, start this instance with the letter in its inbox. p_start is an entry as
-- enqueue_all takes it, with a key.
--   called by: store::signal::signal_or_start, SQL      index: instances_key; signals_dedup
--   locks: the holder's row; or nothing that exists, and waits for a transaction that is about to take the same key
-- Answers what became of the letter ('delivered', 'duplicate', 'no_target': the key is held by one of another machine, or by one
-- that has settled and keeps it; 'inbox_full'), who holds the key, and whether this call started it.
create function gen_durable.signal_or_start(
    p_start jsonb, p_name text, p_payload jsonb, p_dedup text default null, p_machines text[] default null,
    p_inbox_max int default 1000
) returns table (answer text, id bigint, is_new boolean, eligible_at timestamptz)
language plpgsql
set search_path = gen_durable, pg_temp
set enable_seqscan = off set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_tenant text := coalesce(p_start->>'tenant', '');
    v_key text := p_start->>'key';
    holder record;
begin
    if v_key is null or p_start->>'scope' = 'none' then
        raise exception 'an instance that is told or started needs a key' using errcode = 'null_value_not_allowed';
    end if;
    for tries in 1..100 loop
        answer := gen_durable.signal(null, v_tenant, v_key, p_machines, p_name, p_payload, p_dedup, p_inbox_max);
        if answer <> 'no_target' then
            -- Its row is ours until the end of the transaction: it holds its key.
            return query select answer, i.id, false, i.eligible_at from gen_durable.instances i
                where i.tenant = v_tenant and i.correlation_guard = v_key;
            return;
        end if;
        select e.id, e.is_new, e.eligible_at into holder from gen_durable.enqueue_all(jsonb_build_array(p_start)) e;
        if holder.is_new then
            answer := gen_durable.signal(holder.id, null, null, null, p_name, p_payload, p_dedup, p_inbox_max);
            return query select answer, holder.id, true, holder.eligible_at;
            return;
        end if;
        -- Somebody took the key between the two: tell that one, unless it cannot be told.
        if exists (select from gen_durable.instances i
                   where i.id = holder.id and i.correlation_guard = v_key
                     and (i.finished_at is not null or i.fsm <> all (p_machines))) then
            return query select 'no_target', holder.id, false, holder.eligible_at;
            return;
        end if;
    end loop;
    raise exception 'the key % changes hands too fast', v_key using errcode = 'serialization_failure';
end $$;
