-- Sets the share of a tenant in a fair queue: how many of its instances begin while one instance of
-- a tenant with a share of 1 begins. Null, or 1, removes the share.
--   called by: store::fair::set_share, SQL      index: queues_pkey
--   locks: the row of the queue. No pick waits for this lock.
-- Returns whether this changed anything.
create function gen_durable.set_tenant_share(p_queue text, p_tenant text, p_share int) returns boolean
language plpgsql
as $$
-- planner: pinned
declare
    shares jsonb;
begin
    if p_share not between 1 and 1000 then
        raise exception 'the share of a tenant is between 1 and 1000, not %', p_share using errcode = 'invalid_parameter_value';
    end if;
    insert into gen_durable.queues (name) values (p_queue::gen_durable.queue_name) on conflict do nothing;
    perform from gen_durable.queues q where q.name = p_queue for no key update;
    select case when coalesce(p_share, 1) = 1 then q.tenant_shares - p_tenant
                else q.tenant_shares || jsonb_build_object(p_tenant::gen_durable.tenant_name, p_share) end
    into shares from gen_durable.queues q where q.name = p_queue;
    if (select count(*) from jsonb_object_keys(shares)) > 1000 then
        raise exception 'a queue has shares for at most 1000 tenants' using errcode = 'program_limit_exceeded';
    end if;
    update gen_durable.queues q set tenant_shares = shares, fair_version = q.fair_version + 1
    where q.name = p_queue and q.tenant_shares <> shares;
    return found;
end $$;
