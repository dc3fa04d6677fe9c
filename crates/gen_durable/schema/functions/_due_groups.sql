-- Returns groups of instances that wait for limits and that a pick tries now, with their queues:
-- those that are due in these queues, and those that wait for a claim to end in a bound in which
-- this worker has ended one. `retry_seconds` says after how long the next pick tries a group that
-- is still held: the more groups are due at the same time, the later.
--   called by: _pick_limited, _wake_freed      index: limit_backlog_ready, limit_backlog_held
--   locks: nothing
-- p_freed has the groups of the claims that this worker has ended. They may wait in other queues.
-- No group is due later than a minute after it was tried. A later time shows that the clock was set
-- back since, and the group is due.
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._due_groups(p_queues text[], p_freed text[])
returns table (limit_group text, queue text, retry_seconds float8)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    with due as materialized (
        select found.*
        from unnest(p_queues) as wanted(queue)
        cross join lateral (
            (select b.limit_group, b.queue, b.ready_at from gen_durable.limit_backlog b
             where b.queue = wanted.queue and b.ready_at <= gen_durable.clock()
             order by b.ready_at limit 32)
            union all
            (select b.limit_group, b.queue, b.ready_at from gen_durable.limit_backlog b
             where b.queue = wanted.queue and b.ready_at > gen_durable.clock() + interval '61 seconds'
             order by b.ready_at limit 32)
        ) found
        order by found.ready_at
        limit 32
    ), freed as materialized (
        select found.*
        from (select p.name as scope, 32 as most from unnest(p_freed) f(limit_group) cross join lateral gen_durable._limit_pairs(f.limit_group) p
              union
              select p.name || chr(1) || p.key, 8 from unnest(p_freed) f(limit_group) cross join lateral gen_durable._limit_pairs(f.limit_group) p
              where p.key <> '') s
        cross join lateral (
            select b.limit_group, b.queue, b.ready_at from gen_durable.limit_backlog b
            where b.held_on = s.scope
            order by b.ready_at
            limit s.most
        ) found
    )
    select w.limit_group, w.queue, (select greatest(count(*), 1) from due)::float8
    from (select * from due union select * from freed) w
    order by w.ready_at, w.limit_group;
end $$;
