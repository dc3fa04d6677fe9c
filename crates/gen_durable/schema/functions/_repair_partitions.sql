-- Checks a page of the partitions that instances wait for, after (p_tenant, p_key). If a partition
-- has no holder, deletes its cursor and draws an arrival number for the first waiting instance, so
-- that `_place` makes that instance the holder.
--   called by: _repair      index: instances_partition_waiting, instances_partition_holder, partition_cursors_pkey; as _next_in_partition
--   locks: the first waiting instance, skipping it if it is locked
-- Returns the last partition of the page (null if the page was the last), and how many partitions
-- were repaired. It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._repair_partitions(
    p_tenant text, p_key text, p_limit int, out next_tenant text, out next_key text, out repaired int
)
language plpgsql
as $$
declare
    waiting record;
    looked int := 0;
begin
    repaired := 0;
    next_tenant := p_tenant;
    next_key := p_key;
    loop
        select i.tenant, i.partition_key as key into waiting from gen_durable.instances i
        where i.partition_waiting and (i.tenant, i.partition_key) > (next_tenant, next_key)
        order by i.tenant, i.partition_key
        limit 1;
        next_tenant := waiting.tenant;
        next_key := waiting.key;
        exit when next_key is null;
        if not exists (select from gen_durable.instances i
                       where i.tenant = next_tenant and i.partition_key = next_key and not i.partition_waiting
                         and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)) then
            delete from gen_durable.partition_cursors t where t.tenant = next_tenant and t.key = next_key;
            update gen_durable.instances i set arrival_no = nextval('gen_durable.arrival_numbers')
            where i.id = (select h.id from gen_durable.instances h
                          where h.id = gen_durable._next_in_partition(next_tenant, next_key) and h.arrival_no is null
                          for no key update skip locked);
            repaired := repaired + found::int;
        end if;
        looked := looked + 1;
        exit when looked >= p_limit;
    end loop;
end $$;
