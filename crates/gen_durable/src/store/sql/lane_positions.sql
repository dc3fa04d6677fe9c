-- called by: store::explain::precedences     index: instances_pkey, lanes_pkey, instances_lane, instances_partition_holder
-- locks: nothing
-- Returns the lane and partition state of each given instance: the head of its lane; how many
-- instances are before the instance in the lane (all instances of the lane, if the instance has no
-- lane position yet); how many instances wait behind it, if the instance has failed and blocks its
-- lane; and the partition holder. Counts stop at 10,001.
select i.id, head.id as head,
    case when i.status = 'queued' then (select count(*) from (
        select from gen_durable.instances a
        where a.lane_hash = i.lane_hash and a.tenant = i.tenant and a.lane_key = i.lane_key and a.in_lane and a.lane_position > coalesce(l.floor, 0)
          and a.lane_position < case when i.in_lane then i.lane_position else 9223372036854775807 end
        limit 10001) ahead) else 0 end as ahead,
    case when i.status = 'failed' and i.in_lane then (select count(*) from (
        select from gen_durable.instances b
        where b.lane_hash = i.lane_hash and b.tenant = i.tenant and b.lane_key = i.lane_key and b.in_lane and b.lane_position > i.lane_position
        limit 10001) behind) else 0 end as behind,
    (select t.id from gen_durable.instances t
     where t.tenant = i.tenant and t.partition_key = i.partition_key and not t.partition_waiting
       and (t.status in ('runnable', 'executing', 'awaiting_limit') or t.locked_by is not null)) as holder
from gen_durable.instances i
left join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
left join lateral (
    select h.id from gen_durable.instances h
    where h.lane_hash = i.lane_hash and h.tenant = i.tenant and h.lane_key = i.lane_key and h.in_lane and h.lane_position > coalesce(l.floor, 0)
    order by h.lane_hash, h.lane_position
    limit 1
) head on true
where i.id = any ($1::bigint[])
