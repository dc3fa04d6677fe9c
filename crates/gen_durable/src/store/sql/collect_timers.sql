-- called by: store::timer::collect     index: timers_ended, timers_pkey
-- locks: ended timers in the order of their end, skipping rows that another transaction holds
-- Deletes ended timers after their retention. The scan begins at the end time where the last batch
-- ended, because the front of the index is full of dead entries of deleted timers.
with old as materialized (
    select t.id, t.ended_at
    from gen_durable.timers t
    where t.ended_at >= $1 and t.ended_at < gen_durable.clock() - make_interval(secs => $2)
    order by t.ended_at
    limit $3
    for update skip locked
),
gone as (
    delete from gen_durable.timers t using old where t.id = old.id returning old.ended_at
)
select count(*) as count, max(ended_at) as last_ended_at from gone
