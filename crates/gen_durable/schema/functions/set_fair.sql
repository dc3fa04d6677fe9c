-- Makes a queue fair, or ends that. The tenants of a fair queue share the workers; in other queues
-- instances begin by priority and due time, whatever their tenants. The change stays in force over
-- restarts of workers that declare the queue as fair.
--   called by: store::fair::set_fair, SQL      index: queues_pkey
--   locks: the row of the queue. No pick waits for this lock.
-- Returns whether this changed anything.
create function gen_durable.set_fair(p_queue text, p_fair boolean) returns boolean
language plpgsql
as $$
-- planner: pinned
begin
    insert into gen_durable.queues as q (name, fair, fair_changed_at, fair_version)
    values (p_queue::gen_durable.queue_name, p_fair, gen_durable.clock(), 1)
    on conflict (name) do update
    set fair = excluded.fair, fair_changed_at = excluded.fair_changed_at, fair_version = q.fair_version + 1
    where q.fair <> excluded.fair;
    return found;
end $$;
