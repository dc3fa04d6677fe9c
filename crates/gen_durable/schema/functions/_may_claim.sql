-- Tells whether a pick for these ranges may claim or place an instance now, and when the next
-- instance is due. A worker without work calls this function instead of `_pick`: it costs about a
-- third, which counts when a hundred workers at rest poll once a second each.
--   called by: store::pick::may_claim      locks: nothing
--   index: instances_pick, one probe per range; instances_suspects, limit_backlog_ready, one probe
--   per queue; placement_watermarks_pkey; instances_arrival_no
-- The ranges are those of `_pick`. A wrong "yes" costs an empty pick: a queue may be paused, a step
-- unknown, and a transaction that was open at the last placement may still be open.
create function gen_durable._may_claim(
    p_queues text[], p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    out may_claim boolean, out next_due timestamptz, out now timestamptz
)
language plpgsql stable
as $$
-- planner: pinned, nested loops, generic
begin
    now := gen_durable.clock();
    select (select min(first.eligible_at)
            from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id) as range(queue, priority, since, since_id)
            cross join lateral (
                select i.eligible_at
                from gen_durable.instances i
                where i.queue = range.queue and i.priority = range.priority
                  and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                  and (i.eligible_at, i.id) > (range.since, range.since_id)
                  and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
                order by i.eligible_at, i.id
                limit 1
            ) first),
           exists (select from gen_durable.instances i
                   where i.queue = any (p_queues) and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting)
           or exists (select from gen_durable.limit_backlog b where b.queue = any (p_queues))
           or (select w.open_xids <> '{}' or a.last_value - w.placed_to >= 200
                      or exists (select from gen_durable.instances i where i.arrival_no > w.placed_to)
               from gen_durable.placement_watermarks w, gen_durable.arrival_numbers a
               order by w.n desc limit 1)
    into next_due, may_claim;
    may_claim := may_claim or coalesce(next_due <= now, false);
end $$;
