-- Lets instances wait for their limits: they leave the index of the pickers, and the row of their
-- group tells later picks that they wait.
--   called by: _pick_limited      index: instances_pkey, limit_backlog_pkey
--   locks: nothing further: the caller has locked the instances and their limits
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._park(p_ids bigint[]) returns void
language plpgsql
as $$
begin
    with parked as (
        update gen_durable.instances i set status = 'awaiting_limit', updated_at = gen_durable.clock()
        from (select c.id from unnest(p_ids) as c(id) limit cardinality(p_ids)) chosen
        where i.id = chosen.id
        returning i.limit_group, i.queue
    )
    insert into gen_durable.limit_backlog (limit_group, queue, names)
    select p.limit_group, p.queue, array(select l.name from gen_durable._limit_pairs(p.limit_group) l)
    from parked p group by p.limit_group, p.queue
    on conflict (limit_group, queue) do nothing;
end $$;
