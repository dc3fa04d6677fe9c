-- called by: store::keyed::lanes     index: lanes_pkey, instances_lane, instances_blocked, instances_arrival_no
-- locks: nothing
-- Returns a page of the lanes that have instances, by tenant and key, after ($4, $5). The statement
-- starts from the rows of `lanes`, because the lane floor says where the positions of the instances
-- that are still in the lane begin: so a lane costs one index probe, however many instances the
-- lane has or had. If all instances of a lane wait for placement, the statement finds the lane
-- among the first 10,001 arrival numbers. With $3 the page has only blocked lanes. The statement
-- counts depths up to 10,001. With $7 the page has only keys with this prefix. With ($8, $9) the
-- page ends at that lane, so that a search by prefix does not read all lanes.
with placed as materialized (
    (select l.tenant, l.key
     from gen_durable.lanes l
     cross join lateral (
        select from gen_durable.instances i
        where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
          and i.tenant = l.tenant and i.lane_key = l.key
        order by i.lane_hash, i.lane_position
        limit 1
     ) head
     where not $3 and (l.tenant, l.key) > ($4, $5)
       and ($1::text is null or l.tenant = $1) and ($2::text is null or l.key = $2)
       and ($7::text is null or starts_with(l.key, $7)) and ($8::text is null or (l.tenant, l.key) <= ($8, $9))
     order by l.tenant, l.key
     limit $6)
    union all
    (select i.tenant, i.lane_key
     from gen_durable.instances i
     where $3 and i.in_lane and i.status = 'failed' and (i.tenant, i.lane_key) > ($4, $5)
       and ($1::text is null or i.tenant = $1) and ($2::text is null or i.lane_key = $2)
       and ($7::text is null or starts_with(i.lane_key, $7)) and ($8::text is null or (i.tenant, i.lane_key) <= ($8, $9))
     order by i.tenant, i.lane_key
     limit $6)
),
arrived as materialized (
    select a.tenant, a.lane_key as key, count(*) as count
    from (select i.tenant, i.lane_key, i.status, i.in_lane from gen_durable.instances i
          where i.arrival_no is not null order by i.arrival_no limit 10001) a
    where a.status = 'queued' and not a.in_lane
    group by a.tenant, a.lane_key
),
page as materialized (
    select tenant, key from placed
    union
    select tenant, key from arrived
    where not $3 and (tenant, key) > ($4, $5) and ($1::text is null or tenant = $1) and ($2::text is null or key = $2)
      and ($7::text is null or starts_with(key, $7)) and ($8::text is null or (tenant, key) <= ($8, $9))
    order by tenant, key
    limit $6
)
select page.tenant, page.key,
    (select count(*) from (
        select from gen_durable.instances i
        where i.lane_hash = gen_durable._lane_hash(page.tenant, page.key) and i.in_lane and i.lane_position > coalesce(l.floor, 0)
          and i.tenant = page.tenant and i.lane_key = page.key
        limit 10001) depth) as depth,
    coalesce((select arrived.count from arrived where arrived.tenant = page.tenant and arrived.key = page.key), 0) as awaiting_placement,
    (select i.id from gen_durable.instances i
     where i.lane_hash = gen_durable._lane_hash(page.tenant, page.key) and i.in_lane and i.lane_position > coalesce(l.floor, 0)
       and i.tenant = page.tenant and i.lane_key = page.key
     order by i.lane_hash, i.lane_position
     limit 1) as head
from page
left join gen_durable.lanes l on l.tenant = page.tenant and l.key = page.key
order by page.tenant, page.key
