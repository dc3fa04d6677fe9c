-- Lets the next pick of any worker try the groups that wait for a claim to end in these limits.
-- p_freed has the groups of claims that have ended.
--   called by: store::limit::wake_freed      index: as _due_groups; limit_backlog_pkey
--   locks: the rows of the groups, skipping rows that a pick has locked: that pick tries them now
create function gen_durable._wake_freed(p_freed text[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    update gen_durable.limit_backlog b set ready_at = gen_durable.clock()
    where (b.limit_group, b.queue) in (
        select w.limit_group, w.queue from gen_durable.limit_backlog w
        join gen_durable._due_groups('{}', p_freed) g on g.limit_group = w.limit_group and g.queue = w.queue
        where w.ready_at > gen_durable.clock()
        for no key update of w skip locked);
end $$;
