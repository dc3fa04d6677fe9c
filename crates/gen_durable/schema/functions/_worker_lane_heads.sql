-- Returns a page of the lanes of which p_worker is the lane worker, after (p_tenant, p_key), with
-- the head of each.
--   called by: store::lease::{reap, delete_expired_worker, retire, lane_heads}      index: lanes_worker, instances_lane
--   locks: nothing
create function gen_durable._worker_lane_heads(p_worker uuid, p_tenant text, p_key text, p_limit int)
returns table (tenant text, key text, id bigint, status gen_durable.durable_status, claim_epoch bigint, step_seq bigint, locked_by uuid)
language plpgsql stable
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
begin
    return query
    select l.tenant, l.key, head.id, head.status, head.claim_epoch, head.step_seq, head.locked_by
    from (select * from gen_durable.lanes l
          where l.worker_id = p_worker and (l.tenant, l.key) > (p_tenant, p_key)
          order by l.tenant, l.key
          limit p_limit) l
    left join lateral (
        select i.* from gen_durable.instances i
        where i.lane_hash = gen_durable._lane_hash(l.tenant, l.key) and i.in_lane and i.lane_position > l.floor
          and i.tenant = l.tenant and i.lane_key = l.key
        order by i.lane_hash, i.lane_position
        limit 1
    ) head on true;
end $$;
