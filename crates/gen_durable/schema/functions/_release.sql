-- Frees the lanes and partition keys that cancelled instances kept while their step ran. The caller
-- has locked the rows of the instances. Returns their ids.
--   called by: release.sql, release_expired.sql      index: instances_pkey      locks: nothing further
-- Each instance draws an arrival number, so that the next placement promotes its successor.
create function gen_durable._release(p_ids bigint[]) returns bigint[]
language plpgsql
as $$
-- planner: pinned
begin
    update gen_durable.instances i
    set locked_by = null, in_lane = false, arrival_no = nextval('gen_durable.arrival_numbers'), updated_at = gen_durable.clock()
    where i.id = any (p_ids);
    return p_ids;
end $$;
