-- Ends waits and joins at their deadline: the instance becomes runnable at its `deadline_step`.
--   called by: store::timer::expire      index: instances_deadlines
--   locks: the waiting instances, skipping locked rows: a signal that is being delivered at that
--   moment ends the wait
-- Reads deadlines between p_since and p_until seconds before now: the front of the index is full of
-- dead entries, and callers process deadlines that are long overdue at a separate rate. The last
-- row has no id and carries the time.
create function gen_durable._expire(
    p_limit int, p_since float8 default 'infinity', p_until float8 default 0, p_from timestamptz default '-infinity'
) returns table (id bigint, queue text, priority smallint, due_at timestamptz, now timestamptz)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    expired record;
begin
    for expired in
    with due as materialized (
        select i.id, i.deadline_at from gen_durable.instances i
        where i.deadline_at <= gen_durable.clock() - make_interval(secs => p_until)
          and i.deadline_at >= greatest(p_from, case when p_since < 'infinity' then gen_durable.clock() - make_interval(secs => p_since) end)
        order by i.deadline_at
        limit p_limit
        for no key update skip locked
    )
    update gen_durable.instances i
    set status = 'runnable', step = i.deadline_step, data = i.deadline_data, awaits = null, attempt = 0, failures = 0,
        step_seq = i.step_seq + 1, step_entry_seq = i.step_seq + 1, eligible_at = gen_durable.clock(),
        deadline_at = null, deadline_step = null, deadline_data = null, updated_at = gen_durable.clock(),
        -- The worker that claims the instance computes the limits of this step.
        limit_group = null, limit_weight = null,
        partition_waiting = i.partition_key is not null,
        arrival_no = case when i.partition_key is not null then nextval('gen_durable.arrival_numbers') else i.arrival_no end
    from due
    -- Compares the status of the instance as text: a literal of the enum would allow this update a
    -- scan of the index of all waiting instances.
    where i.id = due.id and i.status::text in ('awaiting_signal', 'awaiting_children')
    returning i.id, i.queue, i.priority, due.deadline_at, i.step_seq, i.claim_epoch, i.step
    loop
        perform gen_durable._record_deadline(expired.id, expired.step_seq, expired.claim_epoch, expired.step);
        return query select expired.id, expired.queue, expired.priority, expired.deadline_at, gen_durable.clock();
    end loop;
    return query select null::bigint, null::text, null::smallint, null::timestamptz, gen_durable.clock();
end $$;
