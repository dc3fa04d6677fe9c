-- Reads the newest due instances of a fair queue: for each priority, at most 2,000 after the
-- watermark of the picker. Returns their ids; `reached`, the ends of the pages that were full as
-- [priority, eligible_at, id]; and their tenants as [priority, tenant, from, from_id], where (from,
-- from_id) is the position before the first instance of the tenant.
--   called by: _fair_candidates, store::fair::page      index: instances_pick, instances_pkey
--   locks: instances of the page that are not in instances_fair, FOR NO KEY UPDATE SKIP LOCKED
-- The ranges of the pick begin where the last pick ended that read this page. So a worker reads
-- each instance once to find its tenant, and once to claim it, however many a tenant has.
-- `is_indexed` tells that all of the page was in instances_fair, so that `_due_tenants` finds the
-- tenants after the page faster. The function adds the others.
create function gen_durable._fair_page(
    p_queue text,
    p_range_queues text[], p_range_priorities smallint[], p_range_from timestamptz[], p_range_from_id bigint[], p_known text[],
    out ids bigint[], out reached jsonb, out tenants jsonb, out is_indexed boolean)
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    page_max constant int := 2000;
    unmarked bigint[];
begin
    with due as materialized (
        select range.priority, found.id, found.tenant, found.eligible_at, found.fair,
            row_number() over (partition by range.priority order by found.eligible_at, found.id) as nth
        from unnest(p_range_queues, p_range_priorities, p_range_from, p_range_from_id) as range(queue, priority, since, since_id)
        cross join lateral (
            select i.id, i.tenant, i.eligible_at, i.fair
            from gen_durable.instances i
            where i.queue = p_queue and i.priority = range.priority
              and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
              and (i.eligible_at, i.id) > (range.since, range.since_id)
              and i.eligible_at <= gen_durable.clock()
              and gen_durable._knows_step(p_known, i.machine, i.machine_version, i.step)
            order by i.eligible_at, i.id
            limit page_max
        ) found
        where range.queue = p_queue
    )
    select coalesce(array_agg(d.id order by d.priority, d.nth), '{}'), array_agg(d.id) filter (where not d.fair),
        (select jsonb_agg(jsonb_build_array(f.priority, f.tenant, f.eligible_at, f.id - 1) order by f.priority, f.nth)
         from (select distinct on (o.priority, o.tenant) o.* from due o order by o.priority, o.tenant, o.nth) f),
        coalesce(jsonb_agg(jsonb_build_array(d.priority, d.eligible_at, d.id)) filter (where d.nth = page_max), '[]')
    into ids, unmarked, tenants, reached
    from due d;
    tenants := coalesce(tenants, '[]');
    is_indexed := unmarked is null;
    if not is_indexed then
        update gen_durable.instances i set fair = true
        from (select m.id from gen_durable.instances m where m.id = any (unmarked) for no key update skip locked) m
        where i.id = m.id;
    end if;
end $$;
