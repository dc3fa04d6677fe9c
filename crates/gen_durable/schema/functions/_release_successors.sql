-- Makes successors runnable, so that any picker can claim them. p_freed names the ended instance of
-- each successor. Skips locked successors, and returns the ended instance of each skipped one. No
-- other instance may run before a skipped successor, so the caller draws an arrival number for the
-- ended instance, and `_place` reads its lane or partition key again.
--   called by: _promote_successors      index: instances_pkey
--   locks: the successors by id, skipping locked rows
-- It runs under the planner settings of its callers (see schema/planner.sql).
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
    -- Makes the successors runnable. If the new head of a lane has a partition key too, it waits
    -- for its partition.
    update gen_durable.instances i
    set status = 'runnable',
        partition_waiting = i.status = 'queued' and i.partition_key is not null,
        arrival_no = case when i.status = 'queued' and i.partition_key is not null
                       then nextval('gen_durable.arrival_numbers') else i.arrival_no end,
        eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock()
    where i.id = any (free_ids);
    if cardinality(free_ids) < cardinality(p_ids) then
        return array(
            select n.freed from unnest(p_ids, p_freed) as n(id, freed)
            where n.id <> all (free_ids) and not exists (
                -- Leaves out successors that this commit has already claimed for its own worker.
                select from gen_durable.instances i where i.id = n.id and i.status = 'executing' and i.locked_by = p_worker));
    end if;
    return '{}';
end $$;
