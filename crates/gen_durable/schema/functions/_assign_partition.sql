-- Ensures that a partition has a holder, if any instance waits for the partition. p_came has the
-- instances that have arrived since the last placement. Returns false if another transaction has
-- locked a needed row: the caller has to try again later.
--   called by: _choose_partition_holders
--   index: instances_partition_holder, instances_partition_waiting, partition_cursors_pkey,
--   instances_pkey
--   locks: the holder and the instance that becomes the holder, skipping locked rows. The caller
--   holds the placement lock.
create function gen_durable._assign_partition(p_tenant text, p_key text, p_came bigint[]) returns boolean
language plpgsql
as $$
declare
    holder record;
    best bigint;
    best_at timestamptz;
begin
    select i.id, i.status, i.eligible_at into holder
    from gen_durable.instances i
    where i.tenant = p_tenant and i.partition_key = p_key and not i.partition_waiting
      and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null);
    if holder.id is not null then
        -- Locks the holder of the partition and reads its row a second time: a commit that is about
        -- to free the partition does not see instances that have arrived since it began, and
        -- without the lock this transaction would not see that commit.
        select i.id, i.status, i.eligible_at into holder
        from gen_durable.instances i
        where i.id = holder.id and not i.partition_waiting and (i.status in ('runnable', 'executing', 'awaiting_limit') or i.locked_by is not null)
        for no key update skip locked;
        if holder.id is null then
            return false;
        end if;
    end if;
    -- Lowers the cursor of the partition to the first of the arrived instances, even if that
    -- instance has been cancelled since its arrival: other instances that arrived with it wait
    -- behind it.
    with came as materialized (
        -- Reads the arrived instances by id and not by partition: a scan of the partition's index
        -- would read all waiting instances.
        select i.tenant, i.partition_key, i.priority, i.eligible_at, i.id
        from gen_durable.instances i where i.id = any (p_came)
    )
    update gen_durable.partition_cursors t set priority = f.priority, at = f.eligible_at, id = f.id
    from (select c.priority, c.eligible_at, c.id from came c
          where c.tenant = p_tenant and c.partition_key = p_key
          order by c.priority, c.eligible_at, c.id limit 1) f
    where t.tenant = p_tenant and t.key = p_key and (t.priority, t.at, t.id) > (f.priority, f.eligible_at, f.id);
    if holder.id is not null then
        -- The holder of the partition is executing or due, and stays the holder. A cancelled holder
        -- stays too, since its step still runs.
        if holder.status <> 'runnable' or holder.eligible_at <= gen_durable.clock() then
            return true;
        end if;
    end if;
    best := gen_durable._next_in_partition(p_tenant, p_key);
    if best is null then
        return true;
    end if;
    select i.eligible_at into best_at
    from gen_durable.instances i where i.id = best and i.partition_waiting
    for no key update skip locked;
    if best_at is null then
        return false;
    end if;
    if holder.id is not null then
        -- The holder of the partition is not due yet. An instance that is due, or will be due
        -- sooner, replaces it.
        if best_at >= holder.eligible_at then
            return true;
        end if;
        update gen_durable.instances i set partition_waiting = true where i.id = holder.id;
    end if;
    update gen_durable.instances i
    set partition_waiting = false, eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
    where i.id = best;
    return true;
end $$;
