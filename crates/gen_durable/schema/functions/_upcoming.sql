-- Returns when timers and deadlines fall due, from p_since seconds before now up to p_horizon
-- seconds after. A worker keeps these times in memory to wake its timer loop. The first row carries
-- only the time of the database.
--   called by: store::timer::upcoming      index: timers_due, instances_deadlines
--   locks: nothing
create function gen_durable._upcoming(p_since float8, p_horizon float8, p_limit int)
returns table (due_at timestamptz, is_timer boolean, now timestamptz)
language plpgsql stable
as $$
-- planner: pinned, generic
#variable_conflict use_column
begin
    return query
    select null::timestamptz, false, gen_durable.clock()
    union all
    (select i.deadline_at, false, null::timestamptz from gen_durable.instances i
     where i.deadline_at > gen_durable.clock() - make_interval(secs => p_since) and i.deadline_at <= gen_durable.clock() + make_interval(secs => p_horizon)
     order by i.deadline_at limit p_limit)
    union all
    (select t.due_at, true, null::timestamptz from gen_durable.timers t
     where t.state = 'pending' and t.due_at > gen_durable.clock() - make_interval(secs => p_since)
       and t.due_at <= gen_durable.clock() + make_interval(secs => p_horizon)
     order by t.due_at limit p_limit);
end $$;
