-- Cancels a page of the live children of settled instances. Reads at most p_limit children.
--   called by: store::signal::cancel_below
--   index: instances_children, instances_pkey; as _cancel_live
--   locks: the live children by id, the youngest first, each for at most p_lock_timeout; then as
--   _cancel_live
-- Callers cancel a tree from its root down: a settled parent spawns no more children, so this call
-- finds all of its children. The scan of the first parent begins after (p_generation, p_after). A
-- child that an operator retried has no generation and is read last. Returns the ids of the
-- children that were read, how many parents were read completely, where the next call continues in
-- the next parent, and how many children were cancelled.
create function gen_durable._cancel_below(
    p_parents bigint[], p_generation int, p_after bigint, p_limit int, p_reason text, p_lock_timeout text
) returns table (children bigint[], parents_read int, next_generation int, next_after bigint, cancelled int)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    parent bigint;
    room int := p_limit;
    page bigint[];
    generations int[];
    live bigint[];
    found_live bigint[] := '{}';
begin
    perform set_config('lock_timeout', p_lock_timeout, true);
    children := '{}';
    parents_read := 0;
    next_generation := p_generation;
    next_after := p_after;
    foreach parent in array p_parents loop
        exit when room = 0;
        select array_agg(c.id), array_agg(c.parent_generation), array_agg(c.id) filter (where c.live) into page, generations, live
        from (select * from (
                  (select c.id, c.parent_generation, c.settled_at is null as live from gen_durable.instances c
                   where c.parent_id = parent and (c.parent_generation, c.id) > (next_generation, next_after)
                   order by c.parent_generation, c.id limit room)
                  union all
                  (select c.id, c.parent_generation, c.settled_at is null from gen_durable.instances c
                   where c.parent_id = parent and c.parent_generation is null
                     and c.id > case when next_generation is null then next_after else 0 end
                   order by c.id limit room)) both_kinds
              order by parent_generation nulls last, id
              limit room) c;
        children := children || page;
        found_live := found_live || live;
        if cardinality(page) = room then
            next_generation := generations[room];
            next_after := page[room];
            room := 0;
        else
            room := room - coalesce(cardinality(page), 0);
            parents_read := parents_read + 1;
            next_generation := 0;
            next_after := 0;
        end if;
    end loop;
    cancelled := 0;
    if found_live <> '{}' then
        perform i.id from gen_durable.instances i where i.id = any (found_live) order by i.id desc for no key update;
        cancelled := coalesce(cardinality(gen_durable._cancel_live(found_live, p_reason)), 0);
    end if;
    return next;
end $$;
