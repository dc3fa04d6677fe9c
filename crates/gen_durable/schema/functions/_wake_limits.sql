-- Lets the next pick try the instances that wait for a limit, after its bounds have changed.
--   called by: set_limit, set_limit_key, reset_limit, resume_limit      index: limit_backlog_pkey
--   locks: the rows of the groups that wait, skipping rows that a pick has locked: that pick tries
--   them now, or every 100 ms
create function gen_durable._wake_limits(p_name text) returns void
language plpgsql
as $$
begin
    update gen_durable.limit_backlog b set ready_at = gen_durable.clock()
    where (b.limit_group, b.queue) in (
        select w.limit_group, w.queue from gen_durable.limit_backlog w
        where p_name = any (w.names) and w.ready_at > gen_durable.clock()
        for no key update skip locked);
end $$;
