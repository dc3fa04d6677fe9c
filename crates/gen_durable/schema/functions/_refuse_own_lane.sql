-- Raises an error for children that could never run: children in a lane that has one of their
-- ancestors as its head, or in a lane with a head that waits, through children that are queued in
-- other lanes, for such an ancestor. The ancestor would wait for the child and the child for the
-- ancestor.
--   called by: enqueue_all, for children
--   index: instances_pkey, instances_children; as _lane_head
--   locks: nothing
-- It reads committed rows only: if two spawns that run at the same time form a cycle together,
-- neither sees the children of the other spawn, and the cycle is not found. A join with a deadline,
-- or a join that ends with the first child, ends by itself and is no part of a cycle.
create function gen_durable._refuse_own_lane(p_entries jsonb, p_parent bigint) returns void
language plpgsql
as $$
declare
    ancestor record;
    holders bigint[] := '{}';
    waits_for record;
begin
    for ancestor in
        with recursive above(id, parent_id, tenant, lane_key, in_lane) as (
            select i.id, i.parent_id, i.tenant, i.lane_key, i.in_lane from gen_durable.instances i where i.id = p_parent
            union all
            select i.id, i.parent_id, i.tenant, i.lane_key, i.in_lane
            from above join gen_durable.instances i on i.id = above.parent_id
        )
        select * from above where above.in_lane
    loop
        if exists (select from jsonb_array_elements(p_entries) e
                   where e->>'lane' = ancestor.lane_key and coalesce(e->>'tenant', '') = ancestor.tenant) then
            raise exception 'a child in the lane % would wait for instance %, which has that lane and waits for the child',
                ancestor.lane_key, ancestor.id
                using errcode = 'check_violation', hint = 'give the child another lane, or enqueue it without waiting for it';
        end if;
        holders := holders || ancestor.id;
    end loop;
    if holders = '{}' then
        return;
    end if;
    -- Follows the waits from the head of each lane that a child enters to the instances that the
    -- head waits for, 20 levels deep and among the first 1,000 instances found.
    with recursive chain(id, lane, steps) as (
        select gen_durable._lane_head(k.tenant, k.key), k.key, 1
        from (select distinct coalesce(e->>'tenant', '') as tenant, e->>'lane' as key
              from jsonb_array_elements(p_entries) e where e ? 'lane') k
        union
        select case when c.status = 'queued' then gen_durable._lane_head(c.tenant, c.lane_key) else c.id end, chain.lane, chain.steps + 1
        from chain
        join gen_durable.instances p on p.id = chain.id
        cross join lateral (
            select c.id, c.status, c.tenant, c.lane_key, c.settled_at from gen_durable.instances c
            where c.parent_id = p.id and c.parent_generation = p.join_generation
            order by c.id
            limit 1000
        ) c
        where chain.steps < 20 and p.status = 'awaiting_children' and p.deadline_at is null and not p.join_any
          and c.settled_at is null
    )
    select found_one.id, found_one.lane into waits_for
    from (select chain.id, chain.lane from chain limit 1000) found_one
    where found_one.id = any (holders)
    limit 1;
    if waits_for.id is not null then
        raise exception 'a child in the lane % would never run: the head of that lane waits for a child behind instance %, which waits for this child',
            waits_for.lane, waits_for.id
            using errcode = 'check_violation',
                hint = 'let lanes wait for one another in one order only, give the join a deadline, or enqueue the child without waiting for it';
    end if;
end $$;
