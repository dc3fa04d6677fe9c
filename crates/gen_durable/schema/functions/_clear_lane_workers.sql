-- Clears the lane worker of the lanes that these instances have left: no worker runs the successors
-- without a claim.
--   called by: _cancel_live, _release, _promote_successors, _late_successors, _write_step_results_with_effects, store::lane::{skip,
--   discard}
--   index: instances_pkey, lanes_pkey
--   locks: the lanes, in (tenant, key); after that, the caller waits for no lock of an instance
create function gen_durable._clear_lane_workers(p_ids bigint[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    with owned as materialized (
        select l.tenant, l.key from gen_durable.instances i
        join gen_durable.lanes l on l.tenant = i.tenant and l.key = i.lane_key
        -- A plain `worker_id is not null` would allow a scan of the index of all lanes with a
        -- worker, if Postgres plans this statement while no lane has a worker.
        where i.id = any (p_ids) and coalesce(l.worker_id, '00000000-0000-0000-0000-000000000000') <> '00000000-0000-0000-0000-000000000000'
        order by l.tenant, l.key
        for update of l
    )
    update gen_durable.lanes l set worker_id = null
    from owned
    where l.tenant = owned.tenant and l.key = owned.key;
end $$;
