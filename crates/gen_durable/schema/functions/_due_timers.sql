-- Returns due timers that the calling worker can fire: all repeating timers of waits, and the
-- timers of the schedules that the worker has registered. The last row has no id and carries the
-- time.
--   called by: store::timer::due      index: timers_due
--   locks: nothing: `_fire` checks each timer again under its lock
create function gen_durable._due_timers(
    p_limit int, p_since float8, p_until float8, p_from timestamptz, p_schedules text[], p_except bigint[]
) returns table (
    id bigint, due_at timestamptz, anchor_at timestamptz, remaining int, missed_count int, manual boolean, cycle text,
    missed text, schedule text, now timestamptz
)
language plpgsql stable
as $$
-- planner: pinned, generic
#variable_conflict use_column
begin
    return query
    select t.id, t.due_at, t.anchor_at, t.remaining, t.missed_count, t.manual, t.cycle, t.missed, t.schedule, gen_durable.clock()
    from gen_durable.timers t
    where t.state = 'pending' and t.due_at <= gen_durable.clock() - make_interval(secs => p_until)
      and t.due_at >= greatest(p_from, case when p_since < 'infinity' then gen_durable.clock() - make_interval(secs => p_since) end)
      and (t.schedule is null or t.schedule = any (p_schedules))
      and t.id <> all (p_except)
    order by t.due_at, t.id
    limit p_limit;
    return query
    select null::bigint, null::timestamptz, null::timestamptz, null::int, null::int, null::boolean, null, null, null,
        gen_durable.clock();
end $$;
