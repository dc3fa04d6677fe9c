-- called by: store::turns::page     index: lanes_pkey
-- locks: nothing
-- How far a page of lanes has looked that looks at $5 of them: the last of these, by tenant and key, after ($2, $3). With $4 the
-- lanes that stand still are what is looked at. None: it has looked at all of them.
(select l.tenant, l.key from gen_durable.lanes l
 where not $4 and (l.tenant, l.key) > ($2, $3) and ($1::text is null or l.tenant = $1)
 order by l.tenant, l.key offset $5 - 1 limit 1)
union all
(select i.tenant, i.lane_key from gen_durable.instances i
 where $4 and i.in_lane and i.status = 'failed' and (i.tenant, i.lane_key) > ($2, $3) and ($1::text is null or i.tenant = $1)
 order by i.tenant, i.lane_key offset $5 - 1 limit 1)
