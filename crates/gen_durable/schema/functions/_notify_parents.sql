-- Subtracts settled children from `children_pending` of their parents, and ends the joins that are
-- complete. Only children of the parent's last spawn count: a child of an older spawn changes
-- nothing.
--   called by: _write_step_results_with_effects, _cancel_live, store::lease::reap      index: instances_pkey
--   locks: the parents by id, after the children's own rows
create function gen_durable._notify_parents(p_children bigint[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    parents bigint[];
begin
    parents := array(select distinct c.parent_id from gen_durable.instances c
                     where c.id = any (p_children) and c.parent_generation is not null);
    perform p.id from gen_durable.instances p where p.id = any (parents) order by p.id for no key update;

    with settled as materialized (
        select c.parent_id, c.parent_generation, count(*)::int as count
        from gen_durable.instances c
        where c.id = any (p_children) and c.parent_generation is not null
        group by c.parent_id, c.parent_generation
    )
    update gen_durable.instances p
    set children_pending = p.children_pending - settled.count,
        status = case when p.status = 'awaiting_children' and (p.children_pending - settled.count = 0 or p.join_any)
                      then 'runnable' else p.status end,
        eligible_at = case when p.status = 'awaiting_children' and (p.children_pending - settled.count = 0 or p.join_any)
                           then gen_durable.clock() else p.eligible_at end,
        deadline_at = case when p.status = 'awaiting_children' and (p.children_pending - settled.count = 0 or p.join_any)
                           then null else p.deadline_at end,
        partition_waiting = p.partition_waiting or p.partition_key is not null and p.status = 'awaiting_children'
                                   and (p.children_pending - settled.count = 0 or p.join_any),
        arrival_no = case when p.partition_key is not null and p.status = 'awaiting_children'
                            and (p.children_pending - settled.count = 0 or p.join_any)
                       then nextval('gen_durable.arrival_numbers') else p.arrival_no end,
        updated_at = gen_durable.clock()
    from settled
    where p.id = settled.parent_id and p.join_generation = settled.parent_generation;
    perform gen_durable._record_wakes(parents, 'children');
end $$;
