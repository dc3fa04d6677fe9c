-- Gives up failed and stuck instances: they become cancelled. The caller has locked their rows.
-- Returns the ids of the instances that this call changed.
--   called by: _apply_bulk_page      index: instances_pkey      locks: as _cancel_live
-- The commit that failed an instance has already notified its parent. A failed instance that blocks
-- its lane leaves the lane and draws an arrival number, so that the next placement promotes its
-- successor, as lane_discard.sql does.
create function gen_durable._discard(p_ids bigint[], p_reason text) returns bigint[]
language plpgsql
as $$
-- planner: pinned
declare
    failed bigint[];
begin
    with ended as (
        update gen_durable.instances i
        set status = 'cancelled', in_lane = false,
            arrival_no = case when i.in_lane then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
            claim_epoch = i.claim_epoch + 1,
            last_error = p_reason || coalesce('; it had failed: ' || i.last_error, ''),
            settled_at = gen_durable.clock(), updated_at = gen_durable.clock()
        where i.id = any (p_ids) and i.status = 'failed'
        returning i.id
    )
    select array_agg(ended.id) into failed from ended;
    if failed is not null then
        perform gen_durable._record_history(failed, 'cancel');
    end if;
    return coalesce(failed, '{}') || coalesce(gen_durable._cancel_live(
        array(select i.id from gen_durable.instances i where i.id = any (p_ids) and i.status = 'stuck'), p_reason), '{}');
end $$;
