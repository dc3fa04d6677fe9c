-- Locks at most one suspect (an instance with a crash_count of two or more) that is due in these
-- queues, and returns it with its limits. The columns are null if there is none.
--   called by: _pick_suspect, _pick_limited      index: instances_suspects
--   locks: the suspect, FOR NO KEY UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._find_suspect(p_queues text[], p_known text[], out id bigint, out limit_group text, out weight float8)
language plpgsql
as $$
#variable_conflict use_column
begin
    select found.id, found.limit_group, coalesce(found.limit_weight, 1)::float8 into id, limit_group, weight
    from unnest(p_queues) as wanted(queue)
    cross join lateral (
        select i.id, i.limit_group, i.limit_weight
        from gen_durable.instances i
        where i.queue = wanted.queue and i.status = 'runnable' and i.crash_count >= 2 and not i.partition_waiting
          and i.eligible_at <= gen_durable.clock()
          and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
        order by i.eligible_at, i.id
        limit 1
        for no key update skip locked
    ) found
    where not exists (select from gen_durable.queues q where q.name = wanted.queue and q.paused_at is not null)
    limit 1;
end $$;
