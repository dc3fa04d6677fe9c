-- Inserts a batch of instances of which some have a key, one by one in the order of their keys, so
-- that two batches with the same keys wait for one another and do not deadlock. Returns the same
-- rows as enqueue_all.
--   called by: enqueue_all      index: instances_key, queues_fair
--   locks: no existing row; waits for an open transaction that has inserted the same key
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._enqueue_keyed(p_entries jsonb, p_parent bigint, p_generation int)
returns table (place int, id bigint, is_new boolean, eligible_at timestamptz)
language plpgsql
as $$
#variable_conflict use_column
declare
    entry record;
    made record;
    tries int;
begin
    for entry in
        -- Draws ids and arrival numbers of the new instances in the order of the entries, since
        -- steps read children in the order of their ids.
        select e.value, e.place, e.id, e.arrival_no
        from (select e.value, e.place, nextval('gen_durable.instances_id_seq') as id,
                     case when e.value ?| array['partition', 'lane'] then nextval('gen_durable.arrival_numbers') end as arrival_no
              from jsonb_array_elements(p_entries) with ordinality e(value, place)
              order by e.place) e
        order by coalesce(e.value->>'tenant', ''), e.value->>'key', e.place
    loop
        tries := 0;
        loop
            insert into gen_durable.instances as i
                (id, machine, machine_version, step, data, state, queue, priority, tenant, eligible_at, traceparent,
                 key, key_scope, parent_id, parent_generation,
                 partition_key, lane_key, lane_blocks, status, partition_waiting, arrival_no, limit_group, limit_weight, fair)
            overriding system value
            values (
                entry.id, (entry.value->>'machine')::gen_durable.name, coalesce((entry.value->>'version')::int, 1), (entry.value->>'step')::gen_durable.name,
                entry.value->'data', entry.value->'state', coalesce(entry.value->>'queue', 'default')::gen_durable.queue_name,
                coalesce((entry.value->>'priority')::smallint, 0::smallint), coalesce(entry.value->>'tenant', '')::gen_durable.tenant_name,
                gen_durable._due((entry.value->>'at')::timestamptz, (entry.value->>'delay')::float8),
                entry.value->>'traceparent', (entry.value->>'key')::gen_durable.key_name, gen_durable.key_scope(entry.value->>'scope'),
                p_parent, p_generation,
                (entry.value->>'partition')::gen_durable.key_name, (entry.value->>'lane')::gen_durable.key_name, coalesce((entry.value->>'lane_blocks')::boolean, false),
                case when entry.value ? 'lane' then 'queued' else 'runnable' end::gen_durable.durable_status,
                entry.value ? 'partition' and not entry.value ? 'lane', entry.arrival_no,
                entry.value->>'limit_group', (entry.value->>'limit_weight')::bigint,
                coalesce(entry.value->>'queue', 'default') = any (array(select q.name from gen_durable.queues q where q.fair)))
            on conflict (tenant, held_key) where held_key is not null do nothing
            returning i.id, i.eligible_at into made;
            if made.id is not null then
                return query select entry.place::int, made.id, true, made.eligible_at;
                exit;
            end if;
            -- Another instance holds the key of an entry. If that instance settles between the
            -- insert and this read, the key is free, and this function repeats the insert.
            select i.id, i.eligible_at, i.machine into made
            from gen_durable.instances i
            where i.tenant = coalesce(entry.value->>'tenant', '') and i.held_key = entry.value->>'key';
            if made.id is not null then
                if made.machine <> entry.value->>'machine' and not coalesce(entry.value->'former_names' ? made.machine, false) then
                    raise exception 'the key % is held by instance % of machine %, not of %', quote_literal(entry.value->>'key'),
                        made.id, made.machine, entry.value->>'machine'
                        using errcode = 'unique_violation', hint = 'keys are unique across machines: give each machine''s keys a prefix';
                end if;
                return query select entry.place::int, made.id, false, made.eligible_at;
                exit;
            end if;
            tries := tries + 1;
            if tries > 100 then
                raise exception 'the key % is taken by an instance that this transaction cannot see', entry.value->>'key'
                    using errcode = 'serialization_failure';
            end if;
        end loop;
    end loop;
end $$;
