-- Returns when a pick for these ranges may claim an instance: the earliest due time, which may have
-- passed; 1970 if a pick may place an instance now; or null. A worker without work calls this
-- function instead of `_pick`: it costs about a quarter, which counts when a hundred workers at
-- rest poll once a second each.
--   called by: store::pick::next_claim      locks: nothing
--   index: instances_pick, one probe per range; instances_arrival_no, one probe; with p_limited
--   limit_backlog_ready, one probe per queue
-- The ranges are those of `_pick`, and p_placed_to is the arrival number that the last pick of this
-- worker returned: it had placed everything up to that number. A worker that has declared limits
-- passes p_limited. The function does not read suspects, which wait for the next pick: a worker at
-- rest picks whenever it counts its group. A wrong answer costs an empty pick: a queue may be
-- paused, or a step unknown.
-- Most workers have one range, so one plain query probes that range and the arrivals. A query over
-- unnested ranges would cost a third more, although it is shorter.
create function gen_durable._next_claim(
    p_queues text[], p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_placed_to bigint, p_limited boolean
) returns timestamptz
language plpgsql stable
as $$
-- planner: pinned, generic
declare
    due timestamptz;
    earliest timestamptz;
begin
    select least(
        case when exists (select from gen_durable.instances i where i.arrival_no > p_placed_to) then timestamptz 'epoch' end,
        (select i.eligible_at from gen_durable.instances i
         where i.queue = p_range_queues[1] and i.priority = p_range_priorities[1]
           and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
           and (i.eligible_at, i.id) > (p_range_from[1], p_range_from_id[1])
           and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
         order by i.eligible_at, i.id limit 1))
    into earliest;
    for n in 2..cardinality(p_range_queues) loop
        select i.eligible_at into due from gen_durable.instances i
        where i.queue = p_range_queues[n] and i.priority = p_range_priorities[n]
          and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
          and (i.eligible_at, i.id) > (p_range_from[n], p_range_from_id[n])
          and i.eligible_at <= timestamptz '9999-12-30 22:00:00+00'
        order by i.eligible_at, i.id limit 1;
        earliest := least(earliest, due);
    end loop;
    if p_limited and exists (select from gen_durable.limit_backlog b where b.queue = any (p_queues)) then
        return timestamptz 'epoch';
    end if;
    return earliest;
end $$;
