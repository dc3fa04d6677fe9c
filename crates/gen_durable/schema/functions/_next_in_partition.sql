-- Returns the instance that becomes the next holder of a partition key: the first waiting instance
-- that is due, in the order of the picker; if none is due, the instance that will be due first.
--   called by: _assign_partition, _partition_successors, _repair_partitions
--   index: partition_cursors_pkey; instances_partition_waiting, one probe per priority
--   locks: nothing
create function gen_durable._next_in_partition(p_tenant text, p_key text) returns bigint
language plpgsql stable
as $$
declare
    found_one record;
    first_id bigint;
    first_at timestamptz := 'infinity';
    above int := -40000;
    floor_priority smallint;
    floor_at timestamptz;
    floor_id bigint;
begin
    select coalesce(min(t.priority), -32768), coalesce(min(t.at), '-infinity'), coalesce(min(t.id), 0)
    into floor_priority, floor_at, floor_id from gen_durable.partition_cursors t where t.tenant = p_tenant and t.key = p_key;
    loop
        select i.id, i.priority, i.eligible_at into found_one
        from gen_durable.instances i
        where i.tenant = p_tenant and i.partition_key = p_key and i.partition_waiting and i.priority > above
          and (i.priority, i.eligible_at, i.id) >= (floor_priority, floor_at, floor_id)
        order by i.tenant, i.partition_key, i.priority, i.eligible_at, i.id
        limit 1;
        exit when found_one.id is null;
        if found_one.eligible_at <= gen_durable.clock() then
            return found_one.id;
        end if;
        if first_id is null or found_one.eligible_at < first_at then
            first_id := found_one.id;
            first_at := found_one.eligible_at;
        end if;
        above := found_one.priority;
    end loop;
    return first_id;
end $$;
