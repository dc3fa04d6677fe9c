-- Locks the instances of a fair queue that a pick may claim, up to p_room, so that its tenants
-- share the room, and returns their ids. If all due instances fit into the room, it returns them
-- in the order of the pick. Otherwise it takes some of each tenant, and returns a report from which
-- the picker learns which tenants have due instances.
--   called by: _candidates      index: instances_fair, instances_pkey; as _fair_page
--   locks: the instances, FOR NO KEY UPDATE SKIP LOCKED; as _fair_page
-- p_tenants has the tenants that this worker knows: [priority, tenant, from, from_id, room]. The
-- worker has claimed the due instances of the tenant up to (from, from_id). All room is for the
-- most urgent priority. A tenant that only the page has found gets none: the picker may know it,
-- with instances before those of the page, and asks for it in the next pick.
-- The report has `reached` and `is_indexed` of `_fair_page`, its tenants as `found`, and `tenants`:
-- [priority, tenant, from, from_id, at, id, is_exhausted], where (at, id) is the last candidate of
-- the tenant and is_exhausted tells that there were fewer than asked for.
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._fair_candidates(
    p_queue text, p_room int,
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[],
    p_tenants jsonb, p_known text[], out ids bigint[], out report jsonb)
language plpgsql
as $$
declare
    page record;
    urgent smallint;
begin
    select * into page
    from gen_durable._fair_page(p_queue, p_range_queues, p_range_priorities, p_range_from, p_range_from_id, p_known);
    if p_tenants = '[]' and cardinality(page.ids) <= p_room then
        ids := array(
            select i.id from unnest(page.ids) with ordinality as p(id, nth)
            join gen_durable.instances i on i.id = p.id
            where i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting and i.eligible_at <= gen_durable.clock()
            order by p.nth
            for no key update of i skip locked);
        return;
    end if;
    urgent := (select min((t.value->>0)::smallint) from jsonb_array_elements(p_tenants || page.tenants) as t(value));
    with known(nth, priority, tenant, since, since_id, room) as (
        -- An instance of a known tenant that committed late is before the watermark of the tenant.
        select t.nth, (t.value->>0)::smallint, t.value->>1,
            case when s.is_late then s.since else (t.value->>2)::timestamptz end,
            case when s.is_late then s.since_id else (t.value->>3)::bigint end,
            case when (t.value->>0)::smallint = urgent then (t.value->>4)::int else 0 end
        from jsonb_array_elements(p_tenants) with ordinality as t(value, nth)
        left join lateral (
            select (f.value->>2)::timestamptz as since, (f.value->>3)::bigint as since_id,
                ((f.value->>2)::timestamptz, (f.value->>3)::bigint) < ((t.value->>2)::timestamptz, (t.value->>3)::bigint) as is_late
            from jsonb_array_elements(page.tenants) as f(value)
            where f.value->0 = t.value->0 and f.value->1 = t.value->1) s on true
    ), candidate as materialized (
        select k.nth, k.priority, c.id, c.eligible_at, c.place
        from known k
        cross join lateral (
            select i.id, i.eligible_at, row_number() over () as place
            from (select i.id, i.eligible_at
                  from gen_durable.instances i
                  where i.queue = p_queue and i.priority = k.priority and i.tenant = k.tenant and i.fair
                    and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                    and (i.eligible_at, i.id) > (k.since, k.since_id)
                    and i.eligible_at <= gen_durable.clock()
                    and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
                  order by i.eligible_at, i.id
                  limit k.room
                  for no key update skip locked) i
        ) c
    )
    select coalesce((select array_agg(c.id order by c.priority, c.place, c.nth) from candidate c), '{}'),
        jsonb_build_object('queue', p_queue, 'reached', page.reached, 'is_indexed', page.is_indexed, 'found', page.tenants,
            'tenants', coalesce(jsonb_agg(jsonb_build_array(k.priority, k.tenant, k.since, k.since_id, last.eligible_at, last.id,
                                                            coalesce(last.place, 0) < k.room) order by k.nth), '[]'))
    into ids, report
    from known k
    left join (select distinct on (c.nth) c.* from candidate c order by c.nth, c.place desc) last on last.nth = k.nth;
end $$;
