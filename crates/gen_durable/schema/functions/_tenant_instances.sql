-- Locks and returns the due instances of the tenants that a pick has asked for (see
-- `_fair_candidates`), up to the room of the queue for each.
--   called by: _set_aside_refused      index: instances_fair
--   locks: the instances, FOR NO KEY UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._tenant_instances(p_queues text[], p_room int[], p_fair jsonb, p_known text[])
returns table (id bigint)
language plpgsql
as $$
#variable_conflict use_column
begin
    return query
    select found.id
    from unnest(p_queues, p_room) as wanted(queue, free)
    cross join lateral jsonb_array_elements(p_fair->wanted.queue) as t(value)
    cross join lateral (
        select i.id from gen_durable.instances i
        where i.queue = wanted.queue and i.priority = (t.value->>0)::smallint and i.tenant = t.value->>1 and i.fair
          and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
          and (i.eligible_at, i.id) > ((t.value->>2)::timestamptz, (t.value->>3)::bigint) and i.eligible_at <= gen_durable.clock()
          and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
        order by i.eligible_at, i.id
        limit wanted.free
        for no key update skip locked
    ) found;
end $$;
