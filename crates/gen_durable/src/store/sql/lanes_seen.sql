-- called by: store::keyed::page     index: lanes_pkey
-- locks: nothing
-- Returns the last of the next $5 lanes after ($2, $3), by tenant and key: the end of a page for
-- which the search examines $5 lanes. With $4 the statement counts only blocked lanes. Returns no
-- row if there are fewer lanes, so that the page is the last.
(select l.tenant, l.key from gen_durable.lanes l
 where not $4 and (l.tenant, l.key) > ($2, $3) and ($1::text is null or l.tenant = $1)
 order by l.tenant, l.key offset $5 - 1 limit 1)
union all
(select i.tenant, i.lane_key from gen_durable.instances i
 where $4 and i.in_lane and i.status = 'failed' and (i.tenant, i.lane_key) > ($2, $3) and ($1::text is null or i.tenant = $1)
 order by i.tenant, i.lane_key offset $5 - 1 limit 1)
