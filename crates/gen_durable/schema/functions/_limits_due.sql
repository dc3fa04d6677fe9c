-- Returns when a pick tries the next group of instances that wait for their limits in these queues.
--   called by: _pick      index: limit_backlog_ready, one probe per queue      locks: nothing
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._limits_due(p_queues text[]) returns timestamptz
language plpgsql stable
as $$
begin
    return (
        select min(first.ready_at)
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            select b.ready_at from gen_durable.limit_backlog b where b.queue = wanted.queue order by b.ready_at limit 1
        ) first);
end $$;
