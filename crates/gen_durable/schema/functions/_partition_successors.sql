-- Returns the successors under the partition keys of instances that have ended a step: their ids,
-- for each the instance that ended the step, and the queue in which a worker may run the successor
-- at once (null if no worker may). An instance that ended a step and has not settled waits for its
-- partition again, and may be its own successor.
--   called by: _promote_successors      index: instances_pkey, partition_cursors_pkey; as _next_in_partition
--   locks: partition cursors; this transaction has already updated the holders of these partitions
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._partition_successors(p_ids bigint[], out ids bigint[], out freed bigint[], out queues text[])
language plpgsql
as $$
#variable_conflict use_column
declare
    keyed_ids bigint[];
    raising bigint[];
begin
    keyed_ids := array(select i.id from gen_durable.instances i
                       where i.id = any (p_ids) and i.partition_key is not null and i.status <> 'executing');
    with next_one as materialized (
        -- At most one successor per ended instance runs at once. So if the ended instance has a
        -- lane too, the queue of its partition successor is null.
        select i.id as freed, gen_durable._next_in_partition(i.tenant, i.partition_key) as id,
            case when i.lane_key is null then i.queue end as queue,
            -- One ended step in twenty raises the cursor of its partition.
            gen_durable._one_in(20, i.id + i.step_seq) as raises
        from gen_durable.instances i where i.id = any (keyed_ids)
    )
    select array_agg(n.id), array_agg(n.freed), array_agg(n.queue), array_agg(n.freed) filter (where n.raises)
    into ids, freed, queues, raising
    from next_one n
    where n.id is not null;
    if cardinality(keyed_ids) > coalesce(cardinality(ids), 0) then
        -- Deletes the rows of `partition_cursors` for partitions for which no instance waits.
        delete from gen_durable.partition_cursors t using gen_durable.instances i
        where i.id = any (keyed_ids) and (freed is null or i.id <> all (freed))
          and t.tenant = i.tenant and t.key = i.partition_key;
    end if;
    if raising is not null then
        -- Raises partition cursors to the first instance that waits now, so that the next scan of
        -- the partition does not read dead index entries of instances that waited before.
        insert into gen_durable.partition_cursors as t (tenant, key, priority, at, id)
        select i.tenant, i.partition_key, first.priority, first.eligible_at, first.id
        from gen_durable.instances i
        left join gen_durable.partition_cursors f on f.tenant = i.tenant and f.key = i.partition_key
        cross join lateral (
            select w.priority, w.eligible_at, w.id from gen_durable.instances w
            where w.tenant = i.tenant and w.partition_key = i.partition_key and w.partition_waiting
              and (w.priority, w.eligible_at, w.id) >= (coalesce(f.priority, '-32768'::smallint), coalesce(f.at, '-infinity'), coalesce(f.id, 0))
            order by w.tenant, w.partition_key, w.priority, w.eligible_at, w.id
            limit 1) first
        where i.id = any (raising)
        on conflict (tenant, key) do update set priority = excluded.priority, at = excluded.at, id = excluded.id;
    end if;
end $$;
