-- Assigns lane positions to the instances p_ids in the order of arrival, and makes the head of each
-- lane runnable. The other arrays describe the lanes, which this transaction has locked. A lane may
-- have no instance in p_ids, if it only needs a head.
--   called by: _place      index: instances_pkey, instances_lane
--   locks: the heads by id, skipping locked rows
-- Returns the heads that became runnable. For each lane with a locked head it also returns one
-- instance of p_ids in `again`: the caller draws a new arrival number for it, so that the next
-- placement reads the lane again. It runs under the planner settings of its callers (see
-- schema/planner.sql).
create function gen_durable._place_in_lanes(
    p_ids bigint[], p_tenants text[], p_keys text[], p_floors bigint[],
    out released bigint[], out again bigint[]
)
language plpgsql
as $$
declare
    round bigint;
    heads bigint[];
begin
    round := nextval('gen_durable.placement_rounds') << 20;
    update gen_durable.instances i
    set arrival_no = null,
        in_lane = i.in_lane or i.status = 'queued',
        lane_position = case when i.status = 'queued' and not i.in_lane then round + n.place else i.lane_position end
    from (select i.id, row_number() over (order by i.arrival_no) as place
          from gen_durable.instances i where i.id = any (p_ids) and i.lane_key is not null) n
    where i.id = n.id;

    heads := array(
        select head.id
        from unnest(p_tenants, p_keys, p_floors) as l(tenant, key, floor)
        cross join lateral (
            select i.id, i.status from gen_durable.instances i
            where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
              and i.tenant = l.tenant and i.lane_key = l.key
            order by i.lane_hash, i.lane_position
            limit 1
        ) head
        where head.status = 'queued');
    released := array(select i.id from gen_durable.instances i where i.id = any (heads) and i.status = 'queued'
                      order by i.id for no key update skip locked);
    update gen_durable.instances i
    set status = 'runnable', partition_waiting = i.partition_key is not null,
        eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
    where i.id = any (released);
    if cardinality(released) < cardinality(heads) then
        again := array(
            select max(i.id) from gen_durable.instances i
            join gen_durable.instances h on h.tenant = i.tenant and h.lane_key = i.lane_key
            where i.id = any (p_ids) and h.id = any (heads) and h.id <> all (released)
            group by i.tenant, i.lane_key);
    end if;
end $$;
