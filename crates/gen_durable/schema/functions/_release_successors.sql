-- Makes successors runnable, for any picker. p_freed names the ended instance of each. Returns the
-- ended instances for which the successor is locked and was skipped: no other instance overtakes
-- it, so the caller draws an arrival number for the lane or partition key, and `_place` reads it
-- again.
--   called by: _promote_successors      index: instances_pkey
--   locks: the successors by id, skipping locked ones
-- Its callers pin the plans.
create function gen_durable._release_successors(p_ids bigint[], p_freed bigint[], p_worker uuid) returns bigint[]
language plpgsql
as $$
declare
    free_ids bigint[];
begin
    free_ids := array(
        select i.id from gen_durable.instances i
        where i.id = any (p_ids) and (i.partition_waiting or (i.status = 'queued' and i.in_lane))
        order by i.id
        for no key update skip locked);
    -- A new head of a lane that has a partition key as well waits for its partition.
    update gen_durable.instances i
    set status = 'runnable', claim_epoch = i.claim_epoch + (i.status = 'queued')::int,
        partition_waiting = i.status = 'queued' and i.partition_key is not null,
        arrival_no = case when i.status = 'queued' and i.partition_key is not null
                       then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
        eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
    where i.id = any (free_ids);
    if cardinality(free_ids) < cardinality(p_ids) then
        return array(
            select n.freed from unnest(p_ids, p_freed) as n(id, freed)
            where n.id <> all (free_ids) and not exists (
                -- This very call has claimed it.
                select from gen_durable.instances i where i.id = n.id and i.status = 'executing' and i.locked_by = p_worker));
    end if;
    return '{}';
end $$;
