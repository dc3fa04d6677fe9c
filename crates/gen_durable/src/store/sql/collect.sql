-- called by: store::collect::collect     index: instances_finished, instances_pkey
-- locks: instances, skipping what is held, in order of settling
-- Begins where the last batch ended: the front of the index is full of what was deleted before.
with old as materialized (
    select i.id, i.finished_at
    from gen_durable.instances i
    where i.finished_at >= $1 and i.finished_at < gen_durable.clock() - make_interval(secs => $2)
      -- One that blocks its lane still has it; one whose lane or key is to be looked at leads there.
      and not i.in_lane and i.arrival is null
      -- A parent that lives may still read what its children settled with.
      and (i.parent_id is null or not exists (
        select from gen_durable.instances p
        where p.id = i.parent_id and p.finished_at is null and p.join_generation = i.parent_generation))
    order by i.finished_at
    limit $3
    for update skip locked
),
gone as (
    delete from gen_durable.instances i using old where i.id = old.id returning old.finished_at
)
select count(*), max(finished_at) from gone
