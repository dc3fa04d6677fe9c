-- Claims at most one suspect (an instance with a crash_count of two or more) and returns it. A
-- worker runs one suspect at a time, so that a further crash can be attributed to that suspect.
--   called by: _pick      index: instances_suspects; as _claim
--   locks: the suspect, FOR NO KEY UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._pick_suspect(p_queues text[], p_known text[], p_worker uuid, p_lease_seconds float8)
returns setof gen_durable.claimed
language plpgsql
as $$
declare
    suspect bigint;
begin
    select found.id into suspect
    from unnest(p_queues) as wanted(queue)
    cross join lateral (
        select i.id
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
    if suspect is not null then
        return query select * from gen_durable._claim(array[suspect], false, p_worker, p_lease_seconds);
    end if;
end $$;
