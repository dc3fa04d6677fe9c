-- Returns the tenants of a fair queue that have due instances, each with the first of these: at
-- most 1,000 after the cursor (p_after_priority, p_after_tenant), or from the first one if
-- p_after_tenant is null. The last row may be a tenant without a due instance, with a null due
-- time: the caller goes on after it.
--   called by: store::fair::due_tenants
--   index: instances_fair, one probe per tenant; instances_pick
--   locks: instances that are not in instances_fair yet, FOR NO KEY UPDATE SKIP LOCKED
-- A pick finds tenants by their new instances (see `_fair_page`). This scan finds tenants of
-- instances that committed late or were locked when a pick read them, and costs less than many
-- pages of new instances. An instance that was enqueued while the queue was not fair is not in
-- instances_fair. The scan adds those among the first 2,000 due instances of the queue: one that
-- keeps others behind it is due before them, so it is among the first at some time.
create function gen_durable._due_tenants(p_queue text, p_after_priority smallint, p_after_tenant text)
returns table (priority smallint, tenant text, eligible_at timestamptz, id bigint)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    after_due timestamptz := case when p_after_tenant is null then '-infinity' else 'infinity' end;
begin
    priority := p_after_priority;
    tenant := coalesce(p_after_tenant, '');
    update gen_durable.instances i set fair = true
    from (
        select m.id from gen_durable.instances m
        where m.id in (
            select first.id
            from (select i.id, i.fair, i.eligible_at from gen_durable.instances i
                  where i.queue = p_queue and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
                  order by i.queue, i.priority, i.eligible_at, i.id limit 2000) first
            where not first.fair and first.eligible_at <= gen_durable.clock())
        for no key update skip locked
    ) unmarked
    where i.id = unmarked.id;
    for n in 1..1000 loop
        select i.priority, i.tenant, i.eligible_at, i.id into priority, tenant, eligible_at, id
        from gen_durable.instances i
        where i.queue = p_queue and i.fair and i.status = 'runnable' and i.crash_count < 2 and not i.partition_waiting
          and (i.priority, i.tenant, i.eligible_at) > (_due_tenants.priority, _due_tenants.tenant, after_due)
        order by i.priority, i.tenant, i.eligible_at, i.id limit 1;
        exit when not found;
        after_due := 'infinity';
        if eligible_at <= gen_durable.clock() then
            return next;
        elsif n = 1000 then
            eligible_at := null;
            return next;
        end if;
    end loop;
end $$;
