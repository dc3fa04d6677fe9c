-- Applies the effects of step results in the order of the instance ids: limits of the next step,
-- waits, spawns, new instances, repeating timers, and sleeps until a date.
--   called by: _write_step_results_with_effects      index: instances_pkey, signals_inbox; as
--   enqueue_all, _insert_repeating_timers
--   locks: rows that the caller has locked; as enqueue_all
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._apply_effects(p_results jsonb, p_written bigint[]) returns void
language plpgsql
as $$
declare
    ending jsonb;
    spawned int;
    taken int;
begin
    for ending in
        select e from jsonb_array_elements(p_results) e
        where (e ? 'awaits' or e ? 'spawn' or e ? 'new_instances' or e ? 'signals' or e ? 'at' or e ? 'limits') and (e->>'id')::bigint = any (p_written)
        order by (e->>'id')::bigint
    loop
        if ending ? 'limits' then
            -- The limits of the step that the instance enters; null: none.
            update gen_durable.instances i
            set limit_group = ending->'limits'->>'limit_group', limit_weight = (ending->'limits'->>'limit_weight')::bigint
            where i.id = (ending->>'id')::bigint;
        end if;
        if ending ? 'awaits' or ending ? 'spawn' then
            update gen_durable.instances i
            set awaits = case when ending ? 'awaits' then array(select jsonb_array_elements_text(ending->'awaits')) end,
                deadline_at = case when ending->'deadline' ? 'at'
                    then greatest((ending->'deadline'->>'at')::timestamptz, gen_durable.clock())
                    else gen_durable.clock() + make_interval(secs => (ending->'deadline'->>'after')::float8) end,
                deadline_step = ending->'deadline'->>'step',
                deadline_data = ending->'deadline'->'data',
                join_generation = i.join_generation + (ending ? 'spawn')::int,
                join_any = coalesce((ending->'spawn'->>'any')::boolean, false)
            where i.id = (ending->>'id')::bigint;
        end if;
        if ending ? 'awaits' then
            -- Wakes the instance if its inbox has a signal that it waits for. The snapshot of this
            -- statement is newer than the lock on the instance's row: a signal that was sent while
            -- the instance began to wait is visible, or its sender waits for the lock. Signals that
            -- the step has already received do not wake the instance. The condition compares each
            -- id and not the largest one, since ids commit out of order.
            update gen_durable.instances i
            set status = 'runnable', deadline_at = null, eligible_at = gen_durable.clock(),
                partition_waiting = i.partition_key is not null
            where i.id = (ending->>'id')::bigint and exists (
                select from gen_durable.signals s
                where s.target_id = i.id and s.consumed_at is null and s.name = any (i.awaits)
                  and s.id <> all (array(select jsonb_array_elements_text(coalesce(ending->'seen', '[]'))::bigint)));
        end if;
        if ending ? 'spawn' then
            select count(*) filter (where c.is_new), count(*) filter (where not c.is_new) into spawned, taken
            from gen_durable.instances i
            cross join lateral gen_durable.enqueue_all(ending->'spawn'->'children', i.id, i.join_generation) c
            where i.id = (ending->>'id')::bigint;
            if taken > 0 and (ending->'spawn'->>'taken') = 'fail' then
                raise exception '% of the children have a key that is taken', taken using errcode = 'unique_violation';
            end if;
            update gen_durable.instances i
            set children_pending = spawned,
                status = case when spawned = 0 then 'runnable' else i.status end,
                partition_waiting = spawned = 0 and i.partition_key is not null,
                deadline_at = case when spawned = 0 then null else i.deadline_at end,
                eligible_at = gen_durable.clock()
            where i.id = (ending->>'id')::bigint;
        end if;
        if ending ? 'new_instances' then
            perform gen_durable.enqueue_all(ending->'new_instances');
        end if;
        if ending ? 'repeats' then
            perform gen_durable._insert_repeating_timers((ending->>'id')::bigint, ending->'repeats');
        end if;
        if ending ? 'at' then
            update gen_durable.instances i set eligible_at = greatest((ending->>'at')::timestamptz, gen_durable.clock())
            where i.id = (ending->>'id')::bigint and i.status = 'runnable';
        end if;
    end loop;
end $$;
