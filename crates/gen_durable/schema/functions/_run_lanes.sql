-- Makes p_worker the lane worker of the lanes of these instances: this worker then runs the
-- instances of each lane one after the other.
--   called by: _promote_successors      index: instances_pkey, lanes_pkey
--   locks: the lanes, in (tenant, key)
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._run_lanes(p_ids bigint[], p_worker uuid) returns void
language plpgsql
as $$
begin
    with owned as materialized (
        select l.tenant, l.key from gen_durable.instances i
        join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
        where i.id = any (p_ids) and l.worker_id is distinct from p_worker
        order by l.tenant, l.key
        for update of l
    )
    update gen_durable.lanes l set worker_id = p_worker
    from owned
    where l.tenant = owned.tenant and l.key = owned.key;
end $$;
