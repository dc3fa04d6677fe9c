-- Returns the earliest due time after now of the instances in these ranges (queue,
-- priority), up to the last date that the client can decode.
--   called by: _pick      index: instances_pick, one probe per range      locks: nothing
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._next_due(p_queues text[], p_priorities smallint[]) returns timestamptz
language plpgsql stable
as $$
begin
    return (
        select min(due.eligible_at)
        from unnest(p_queues, p_priorities) as range(queue, priority)
        cross join lateral (
            select i.eligible_at
            from gen_durable.instances i
            where i.queue = range.queue and i.priority = range.priority
              and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
              and i.eligible_at > gen_durable.clock() and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
            order by i.eligible_at
            limit 1
        ) due);
end $$;
