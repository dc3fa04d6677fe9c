-- called by: store::lane::depth     index: lanes_pkey, instances_lane, instances_blocked
-- locks: nothing
-- Counts the instances in lanes, and the blocked lanes. Each count has an upper bound, and the
-- statement reads a bounded number of lanes: a metric must not cost more when the backlog grows.
select
    (select count(*) from (
        select from (select * from gen_durable.lanes limit 10001) l
        cross join lateral (
            select from gen_durable.instances i
            where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
              and i.tenant = l.tenant and i.lane_key = l.key
            limit 10001
        ) stands
        limit 10001) stands) as depth,
    (select count(*) from (
        select from gen_durable.instances i where i.in_lane and i.status = 'failed' limit 10001) failed) as blocked
