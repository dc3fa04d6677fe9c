-- Adds a batch of counts of a worker to the rollups. Returns false, and adds nothing, if another
-- transaction holds the rollup lock: the worker sends the batch again later.
--   called by: store::rollup::add
--   index: rollup_lock_pkey, rollup_writers_pkey, rollups_pkey
--   locks: the rollup lock, skipped if another transaction holds it; then the worker's row in
--   rollup_writers, and rows of rollups. Every transaction that writes these two tables holds the
--   rollup lock, so none of them waits for another one.
-- A worker numbers its batches. If the number of a batch is not above the last one that was added,
-- the rollups have it already: the worker sends a batch again if the reply to it was lost (R-160).
-- Element n of the arrays is one pair of a machine and a queue; the histograms of all pairs follow
-- each other. A bucket has at most 100 pairs; further pairs share one row without names. The first
-- batch of a bucket deletes rows past their retention.
create function gen_durable._add_rollups(
    p_worker uuid, p_batch bigint, p_age_seconds float8, p_machines text[], p_queues text[],
    p_steps bigint[], p_failures bigint[], p_done bigint[], p_failed bigint[],
    p_queue_time bigint[], p_duration bigint[]
) returns boolean
language plpgsql
as $$
-- planner: pinned, nested loops, generic
declare
    pairs_max constant int := 100;
    classes constant int := 21;
    added constant timestamptz := gen_durable.clock();
    kept record;
    start timestamptz;
    known int;
    named boolean;
begin
    perform from gen_durable.rollup_lock where one for update skip locked;
    if not found then
        return false;
    end if;
    insert into gen_durable.rollup_writers as w (worker_id, batch, added_at) values (p_worker, p_batch, added)
    on conflict (worker_id) do update set batch = excluded.batch, added_at = excluded.added_at
    where w.batch < excluded.batch;
    if not found then
        return true;
    end if;
    for kept in select * from (values (60, interval '3 hours'), (600, interval '2 days'), (3600, interval '8 days')) as k(seconds, age)
    loop
        start := date_bin(make_interval(secs => kept.seconds), added - make_interval(secs => p_age_seconds), 'epoch');
        select count(*) into known from gen_durable.rollups r where r.seconds = kept.seconds and r.bucket = start;
        if known = 0 then
            delete from gen_durable.rollups r
            where r.seconds = kept.seconds and (r.bucket, r.machine, r.queue) in (
                select o.bucket, o.machine, o.queue from gen_durable.rollups o
                where o.seconds = kept.seconds and o.bucket < added - kept.age
                order by o.bucket limit 500);
            delete from gen_durable.rollup_writers w
            where kept.seconds = 3600 and w.added_at < added - interval '1 day';
        end if;
        for n in 1 .. cardinality(p_machines) loop
            named := known < pairs_max or exists (
                select from gen_durable.rollups r
                where r.seconds = kept.seconds and r.bucket = start and r.machine = p_machines[n] and r.queue = p_queues[n]);
            insert into gen_durable.rollups as r (seconds, bucket, machine, queue, steps, failures, done, failed, queue_time, duration)
            values (kept.seconds, start,
                case when named then p_machines[n] else '' end, case when named then p_queues[n] else '' end,
                p_steps[n], p_failures[n], p_done[n], p_failed[n],
                p_queue_time[(n - 1) * classes + 1 : n * classes], p_duration[(n - 1) * classes + 1 : n * classes])
            on conflict (seconds, bucket, machine, queue) do update
            set steps = r.steps + excluded.steps, failures = r.failures + excluded.failures,
                done = r.done + excluded.done, failed = r.failed + excluded.failed,
                queue_time = gen_durable._add_counts(r.queue_time, excluded.queue_time),
                duration = gen_durable._add_counts(r.duration, excluded.duration)
            returning r.xmax = 0 into named;
            known := known + named::int;
        end loop;
    end loop;
    return true;
end $$;
