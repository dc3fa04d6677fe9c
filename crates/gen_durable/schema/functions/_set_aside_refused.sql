-- Finds the candidates of a failed pick that the database does not let a worker claim, and sets
-- them aside as `stuck` with the error as reason. Since one statement claims for all queues, one
-- such instance would make every pick fail.
--   called by: store::pick::set_aside_refused
--   index: instances_pick, instances_suspects, instances_pkey, limit_backlog_ready,
--   instances_limit_waiting; as _place_new, _tenant_instances
--   locks: as _place_new, _tenant_instances; the candidates, FOR NO KEY UPDATE SKIP LOCKED, until
--   the end of the statement
-- Claims each candidate in a subtransaction and rolls the subtransaction back. Raises an error that
-- concerns the server and not the row.
create function gen_durable._set_aside_refused(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[], p_known text[],
    p_fair jsonb
) returns table (id bigint, machine text, step text, attempt int, reason text)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    candidate bigint;
begin
    -- Repeats the placement of the failed pick, which was rolled back: without this placement, an
    -- instance that has just arrived would not be a candidate.
    perform gen_durable._place_new(1000);
    for candidate in
        select found.id
        from unnest(p_queues, p_room) as wanted(queue, free)
        cross join unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id) as range(queue, priority, since, since_id)
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.queue = range.queue and i.priority = range.priority
              and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
              and (i.eligible_at, i.id) > (range.since, range.since_id) and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.eligible_at, i.id
            limit wanted.free
            for no key update skip locked
        ) found
        where range.queue = wanted.queue
        union all
        select t.id from gen_durable._tenant_instances(p_queues, p_room, p_fair, p_known) t
        union all
        select found.id
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting
              and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.eligible_at, i.id
            limit 1
            for no key update skip locked
        ) found
        union all
        select found.id
        from unnest(p_queues, p_room) as wanted(queue, free)
        cross join lateral (
            select b.limit_group from gen_durable.limit_backlog b where b.queue = wanted.queue order by b.ready_at limit 200
        ) backlog
        cross join lateral (
            select i.id from gen_durable.instances i
            where i.status = 'awaiting_limit' and i.limit_group = backlog.limit_group and i.queue = wanted.queue
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.limit_group, i.queue, i.priority, i.eligible_at, i.id
            limit wanted.free
            for no key update skip locked
        ) found
    loop
        begin
            update gen_durable.instances i
            set status = 'executing', locked_by = gen_random_uuid(), claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock()
            where i.id = candidate;
            perform i.data::text, i.state::text, gen_durable._inbox_of(i.id),
                case when i.join_generation > 0 then gen_durable._children_of(i.id, i.join_generation) end
            from gen_durable.instances i where i.id = candidate;
            raise exception using errcode = 'GD000', message = 'rolls the claim back';
        exception
            when sqlstate 'GD000' then
                null;
            when others then
                if left(sqlstate, 2) not in ('21', '22', '23', '44', '54', 'P0') then
                    raise;
                end if;
                return query
                update gen_durable.instances i
                set status = 'stuck', last_error = left('a pick of this instance was refused: ' || sqlerrm, 8192),
                    claim_epoch = i.claim_epoch + 1, updated_at = gen_durable.clock(),
                    -- The stuck instance draws an arrival number, so that `_place` chooses the next
                    -- holder of its partition.
                    arrival_no = case when i.partition_key is not null then nextval('gen_durable.arrival_numbers') else i.arrival_no end
                where i.id = candidate
                returning i.id, i.machine, i.step, i.attempt, i.last_error;
                perform gen_durable._record_history(array[candidate], 'stuck');
        end;
    end loop;
end $$;
