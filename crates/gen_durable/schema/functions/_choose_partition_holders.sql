-- Ensures that each partition of these instances has a holder. For each partition with a locked
-- row, returns one instance: the first that waits. The caller draws a new arrival number for that
-- instance, and the next placement tries the partition again. One instance is enough for all that
-- arrived together, since that placement lowers the partition cursor to it.
--   called by: _place      index: instances_pkey; as _assign_partition      locks: as
--   _assign_partition, in (tenant, key)
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._choose_partition_holders(p_ids bigint[]) returns bigint[]
language plpgsql
as $$
declare
    partition record;
    again bigint[] := '{}';
begin
    for partition in
        select i.tenant, i.partition_key as key, array_agg(i.id order by i.partition_waiting desc, i.priority, i.eligible_at, i.id) as ids
        from gen_durable.instances i
        where i.id = any (p_ids) and i.partition_key is not null
        group by i.tenant, i.partition_key
        order by i.tenant, i.partition_key
    loop
        if not gen_durable._assign_partition(partition.tenant, partition.key, partition.ids) then
            again := again || partition.ids[1];
        end if;
    end loop;
    return again;
end $$;
