-- Ensures that each partition of these instances has a holder. For each partition with a locked
-- row, returns one instance: the first that waits. The caller draws a new arrival number for that
-- instance, and the next placement tries the partition again. One instance is enough for all that
-- arrived together, since that placement lowers the partition cursor to it.
--   called by: _place
--   index: instances_pkey, instances_partition_holder, instances_partition_waiting,
--   partition_cursors_pkey; as _assign_partition
--   locks: the holders, then partition cursors, then the instances that become holders; skips
--   locked instances; as _assign_partition. The caller holds the placement lock.
-- Most partitions have a holder that stays, or no holder and a first waiting instance that is due.
-- Four statements serve all of these together; `_assign_partition` serves each of the others. It
-- runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._choose_partition_holders(p_ids bigint[]) returns bigint[]
language plpgsql
as $$
declare
    -- The partitions: for each an arrived instance that stands for it, its first arrived instance
    -- in the order of the picker, and its holder, as far as the first statement sees one.
    samples bigint[];
    tenants text[];
    keys text[];
    firsts bigint[];
    holders bigint[];
    staying bigint[];
    served bigint[];
    chosen bigint[];
    again bigint[] := '{}';
    partition record;
begin
    select array_agg(a.sample), array_agg(a.tenant), array_agg(a.partition_key), array_agg(a.first), array_agg(
        (select i.id from gen_durable.instances i
         where i.tenant = a.tenant and i.partition_key = a.partition_key and not i.partition_waiting
           and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)))
    into samples, tenants, keys, firsts, holders
    from (select i.tenant, i.partition_key, min(i.id) as sample, (array_agg(i.id order by i.priority, i.eligible_at, i.id))[1] as first
          from gen_durable.instances i
          where i.id = any (p_ids) and i.partition_key is not null
          group by i.tenant, i.partition_key) a;
    if keys is null then
        return again;
    end if;
    -- Locks the holders and reads their rows a second time: a commit that is about to free a
    -- partition does not see instances that have arrived since it began, and without the lock this
    -- transaction would not see that commit. A holder that is executing or due stays the holder.
    staying := array(
        select i.id from gen_durable.instances i
        where i.id = any (holders) and not i.partition_waiting
          and (i.status in ('executing', 'awaiting_limit') or i.status = 'runnable' and i.eligible_at <= gen_durable.clock())
        order by i.id
        for no key update skip locked);
    -- Lowers the cursors of these partitions, and of those without a holder, to the first arrived
    -- instance, even if it was cancelled since its arrival: others that arrived with it wait behind
    -- it. No commit has locked these cursors, since a commit locks the holder first.
    update gen_durable.partition_cursors t set priority = i.priority, at = i.eligible_at, id = i.id
    from unnest(tenants, keys, firsts, holders) as p(tenant, key, first, holder)
    join gen_durable.instances i on i.id = p.first
    where t.tenant = p.tenant and t.key = p.key and (p.holder is null or p.holder = any (staying))
      and (t.priority, t.at, t.id) > (i.priority, i.eligible_at, i.id);
    -- In a partition without a holder, the first waiting instance becomes the holder if it is due.
    select array_agg(w.id), array_agg(p.sample) into chosen, served
    from unnest(samples, tenants, keys, holders) as p(sample, tenant, key, holder)
    left join gen_durable.partition_cursors t on t.tenant = p.tenant and t.key = p.key
    cross join lateral (
        select i.id, i.eligible_at from gen_durable.instances i
        where i.tenant = p.tenant and i.partition_key = p.key and i.partition_waiting
          and (i.priority, i.eligible_at, i.id)
              >= (coalesce(t.priority, '-32768'::smallint), coalesce(t.at, '-infinity'), coalesce(t.id, 0))
        order by i.tenant, i.partition_key, i.priority, i.eligible_at, i.id
        limit 1
    ) w
    where p.holder is null and w.eligible_at <= gen_durable.clock();
    -- A plain `partition_waiting` would allow a plan that reads all waiting instances.
    with free as materialized (
        select i.id from gen_durable.instances i where i.id = any (chosen) and coalesce(i.partition_waiting, false)
        order by i.id
        for no key update skip locked
    ), made as (
        update gen_durable.instances i
        set partition_waiting = false, eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
        from free where i.id = free.id
        returning i.id
    )
    select array_agg(c.sample) into served
    from unnest(chosen, served) as c(id, sample) join made on made.id = c.id;
    for partition in
        select i.tenant, i.partition_key as key, array_agg(i.id order by i.partition_waiting desc, i.priority, i.eligible_at, i.id) as ids
        from gen_durable.instances i
        where i.id = any (p_ids) and i.partition_key is not null
        group by i.tenant, i.partition_key
        having min(i.id) <> all (served || array(
            select p.sample from unnest(samples, holders) as p(sample, holder) where p.holder = any (staying)))
        order by i.tenant, i.partition_key
    loop
        if not gen_durable._assign_partition(partition.tenant, partition.key, partition.ids) then
            again := again || partition.ids[1];
        end if;
    end loop;
    return again;
end $$;
