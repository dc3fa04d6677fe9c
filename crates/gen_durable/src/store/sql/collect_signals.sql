-- called by: store::collect::collect_signals     index: signals_consumed, signals_pkey
-- locks: consumed signals in the order of their consumption, skipping rows that another transaction
-- holds
-- Deletes consumed signals after their retention. The scan begins at the consumption time where the
-- last batch ended, because the front of the index is full of dead entries of deleted signals.
with old as materialized (
    select s.id, s.consumed_at
    from gen_durable.signals s
    where s.consumed_at >= $1 and s.consumed_at < gen_durable.clock() - make_interval(secs => $2)
    order by s.consumed_at
    limit $3
    for update skip locked
),
gone as (
    delete from gen_durable.signals s using old where s.id = old.id returning old.consumed_at
)
select count(*) as count, max(consumed_at) as last_consumed_at from gone
