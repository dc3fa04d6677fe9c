-- Returns three numbers about the group of p_worker: how many workers share its polls, how many of
-- them come before it in the order of ids, and how many milliseconds ago a worker of the group last
-- found work (at most 1,000,000). The group are the workers with a valid lease that poll and can
-- claim every instance and fire every schedule of p_worker. With p_found_work, the function first
-- records that p_worker has found work. The result is a hint for the rate of polls and of upkeep.
--   called by: _pick      index: workers_pkey, and one row per process
--   locks: with p_found_work the row of p_worker, FOR NO KEY UPDATE SKIP LOCKED: the worker may be
--   renewing its lease
create function gen_durable._fleet(p_worker uuid, p_found_work boolean default false) returns int[]
language plpgsql
as $$
-- planner: pinned
declare
    own gen_durable.workers;
begin
    if p_found_work then
        update gen_durable.workers w set found_work_at = statement_timestamp()
        where w.id = (select mine.id from gen_durable.workers mine where mine.id = p_worker for no key update skip locked);
    end if;
    select w.* into own from gen_durable.workers w where w.id = p_worker;
    return (
        select array[count(*), count(*) filter (where w.id < p_worker),
            least(1000000, extract(epoch from statement_timestamp() - max(w.found_work_at)) * 1000)]::int[]
        from gen_durable.workers w
        where w.lease_expires_at > statement_timestamp() and (w.polls or w.id = p_worker)
          -- Most fleets run one build: equal arrays are compared faster than contained ones.
          and (w.machines = own.machines or w.machines @> own.machines)
          and (w.queues = own.queues or w.queues @> own.queues)
          and (w.schedules = own.schedules or w.schedules @> own.schedules));
end $$;
