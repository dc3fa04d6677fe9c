-- Returns how many workers share the polls of p_worker, and how many of them come before p_worker
-- in the order of ids: the workers with a valid lease that poll and can claim every instance that
-- p_worker can claim. The result is a hint for the rate of polls and of upkeep.
--   called by: _pick      index: workers_pkey, and one row per process      locks: nothing
create function gen_durable._fleet(p_worker uuid) returns int[]
language plpgsql stable
as $$
-- planner: pinned
declare
    own gen_durable.workers;
begin
    select w.* into own from gen_durable.workers w where w.id = p_worker;
    return (
        select array[count(*), count(*) filter (where w.id < p_worker)]::int[]
        from gen_durable.workers w
        where w.lease_expires_at > statement_timestamp() and (w.polls or w.id = p_worker)
          -- Most fleets run one build: equal arrays are compared faster than contained ones.
          and (w.machines = own.machines or w.machines @> own.machines)
          and (w.queues = own.queues or w.queues @> own.queues));
end $$;
