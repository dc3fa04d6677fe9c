-- Inserts instances, with or without a key.
--   called by: store::enqueue, _apply_effects, enqueue, signal_or_start, _fire, SQL
--   index: instances_pkey, queues_fair; as _refuse_own_lane, _lanes_at_once, _enqueue_keyed
--   locks: no existing row; as _enqueue_keyed, and if p_at_once as _lanes_at_once
-- Returns one row per entry: its place in p_entries, the id of the new instance (or of the instance
-- that already holds the key), whether the instance is new, and when it is due. Raises
-- unique_violation if an instance of another machine (neither `machine` nor one of `former_names`)
-- holds the key.
create function gen_durable.enqueue_all(
    p_entries jsonb, p_parent bigint default null, p_generation int default null, p_at_once boolean default false
)
returns table (place int, id bigint, is_new boolean, eligible_at timestamptz)
language plpgsql
as $$
-- planner: pinned
#variable_conflict use_column
declare
    lane_tenants text[];
    lane_keys text[];
    lane_taken boolean[];
    round bigint;
begin
    if jsonb_path_exists(p_entries, '$[*].lane') or jsonb_path_exists(p_entries, '$[*].partition') then
        -- Assigns an id to this transaction before it draws an arrival number: see `_place_new`.
        perform pg_current_xact_id();
        if p_parent is not null then
            perform gen_durable._refuse_own_lane(p_entries, p_parent);
        end if;
        if p_at_once then
            select array_agg(l.tenant), array_agg(l.key), array_agg(l.taken) into lane_tenants, lane_keys, lane_taken
            from gen_durable._lanes_at_once(p_entries) l;
            if lane_keys is not null then
                round := nextval('gen_durable.placement_rounds') << 20;
            end if;
        end if;
    end if;
    if jsonb_path_exists(p_entries, '$[*].key') then
        return query select e.* from gen_durable._enqueue_keyed(p_entries, p_parent, p_generation) e;
        return;
    end if;
    -- Inserts the entries without keys in one statement. An entry in a lane that this transaction
    -- has locked gets its lane position at once, and the first entry in a lane without instances
    -- becomes runnable.
    return query
    with made as (
        insert into gen_durable.instances as i
            (machine, machine_version, step, data, state, queue, priority, tenant, eligible_at, traceparent, parent_id, parent_generation,
             partition_key, lane_key, lane_blocks, status, partition_waiting, in_lane, lane_position, arrival_no, limit_group, limit_weight, fair)
        select (e.value->>'machine')::gen_durable.name, coalesce((e.value->>'version')::int, 1), (e.value->>'step')::gen_durable.name,
            e.value->'data', e.value->'state', coalesce(e.value->>'queue', 'default')::gen_durable.queue_name, coalesce((e.value->>'priority')::smallint, 0::smallint),
            coalesce(e.value->>'tenant', '')::gen_durable.tenant_name,
            gen_durable._due((e.value->>'at')::timestamptz, (e.value->>'delay')::float8),
            e.value->>'traceparent', p_parent, p_generation,
            (e.value->>'partition')::gen_durable.key_name, (e.value->>'lane')::gen_durable.key_name, coalesce((e.value->>'lane_blocks')::boolean, false),
            case when not e.value ? 'lane' or (e.nth = 1 and not l.taken) then 'runnable' else 'queued' end::gen_durable.durable_status,
            e.value ? 'partition' and not e.value ? 'lane',
            l.taken is not null,
            case when l.taken is not null then round + e.place end,
            case when e.value ?| array['partition', 'lane'] and l.taken is null then nextval('gen_durable.arrival_numbers') end,
            e.value->>'limit_group', (e.value->>'limit_weight')::bigint,
            coalesce(e.value->>'queue', 'default') = any (array(select q.name from gen_durable.queues q where q.fair))
        from (select e.value, e.place, row_number() over (
                  partition by coalesce(e.value->>'tenant', ''), e.value->>'lane' order by e.place) as nth
              from jsonb_array_elements(p_entries) with ordinality e(value, place)) e
        left join unnest(lane_tenants, lane_keys, lane_taken) as l(tenant, key, taken)
            on l.tenant = coalesce(e.value->>'tenant', '') and l.key = e.value->>'lane'
        order by e.place
        returning i.id, i.eligible_at
    )
    select (row_number() over (order by made.id))::int, made.id, true, made.eligible_at from made;
end $$;
