-- Makes p_worker the worker that runs the lanes of these instances, one instance after the other.
--   called by: _promote_successors      index: instances_pkey, lanes_pkey
--   locks: the lanes, in (tenant, key)
-- Its callers pin the plans.
create function gen_durable._run_lanes(p_ids bigint[], p_worker uuid) returns void
language plpgsql
as $$
begin
    with led as materialized (
        select l.tenant, l.key from gen_durable.instances i
        join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
        where i.id = any (p_ids) and l.worker_id is distinct from p_worker
        order by l.tenant, l.key
        for update of l
    )
    update gen_durable.lanes l set worker_id = p_worker
    from led
    where l.tenant = led.tenant and l.key = led.key;
end $$;
