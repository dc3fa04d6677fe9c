-- Locks the instances that a pick may claim, up to the room of each queue, and returns them as
-- columns in the order of the pick, with the limits and the weight of each. `report` is an array
-- of the reports of `_fair_candidates`, one per fair queue with more due instances than room.
--   called by: _pick_limited      index: instances_pick, instances_pkey; as _fair_candidates
--   locks: the instances, FOR NO KEY UPDATE SKIP LOCKED, in (priority, eligible_at, id); as
--   _fair_candidates
-- p_fair has an entry for each fair queue: the arguments of `_fair_candidates`.
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._candidates(
    p_queues text[], p_room int[],
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[], p_known text[], p_fair jsonb,
    out ids bigint[], out groups text[], out weights float8[], out queues text[], out report jsonb)
language plpgsql
as $$
declare
    fair_queue record;
    shared record;
    fair_ids bigint[] := '{}';
begin
    if p_fair is not null then
        for fair_queue in
            select w.queue, w.free, coalesce(p_fair->w.queue, '[]') as tenants
            from unnest(p_queues, p_room) as w(queue, free) where p_fair ? w.queue
        loop
            select * into shared from gen_durable._fair_candidates(fair_queue.queue, fair_queue.free,
                p_range_queues, p_range_priorities, p_range_from, p_range_from_id, fair_queue.tenants, p_known);
            fair_ids := fair_ids || shared.ids;
            if shared.report is not null then
                report := coalesce(report, '[]') || jsonb_build_array(shared.report);
            end if;
        end loop;
    end if;
    select coalesce(array_agg(c.id order by c.nth), '{}'), array_agg(c.limit_group order by c.nth),
        array_agg(coalesce(c.limit_weight, 1)::float8 order by c.nth), array_agg(c.queue order by c.nth)
    into ids, groups, weights, queues
    from (
        select chosen.*, row_number() over () as nth
        from unnest(p_queues, p_room) as wanted(queue, free)
        cross join lateral (
            select found.*, wanted.queue
            from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id)
                as range(queue, priority, since, since_id)
            cross join lateral (
                select i.id, i.limit_group, i.limit_weight
                from gen_durable.instances i
                where i.queue = range.queue and i.priority = range.priority
                  and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                  and (i.eligible_at, i.id) > (range.since, range.since_id)
                  and i.eligible_at <= gen_durable.clock()
                  and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                order by i.eligible_at, i.id
                limit wanted.free
                for no key update skip locked
            ) found
            where range.queue = wanted.queue
            limit wanted.free
        ) chosen
        where p_fair is null or not p_fair ? wanted.queue
        union all
        select i.id, i.limit_group, i.limit_weight, i.queue, 1000000 + f.nth
        from unnest(fair_ids) with ordinality as f(id, nth)
        join gen_durable.instances i on i.id = f.id
    ) c;
end $$;
