-- Returns when a pick tries the next group of instances that wait for their limits in these queues,
-- except the paused ones.
--   called by: _pick, _pick_limited      index: limit_backlog_ready, two probes per queue      locks: nothing
-- A group that is due more than a minute from now was tried before the clock was set back: it is
-- due. It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._limits_due(p_queues text[], p_paused text[]) returns timestamptz
language plpgsql stable
as $$
begin
    return (
        select min(due.ready_at)
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            (select b.ready_at from gen_durable.limit_backlog b where b.queue = wanted.queue order by b.ready_at limit 1)
            union all
            (select gen_durable.clock() from gen_durable.limit_backlog b
             where b.queue = wanted.queue and b.ready_at > gen_durable.clock() + interval '61 seconds' limit 1)
        ) due
        where wanted.queue <> all (coalesce(p_paused, '{}')));
end $$;
