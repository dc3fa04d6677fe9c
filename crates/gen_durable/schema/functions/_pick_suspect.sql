-- Claims at most one suspect and returns it. A worker runs one suspect at a time, so that a further
-- crash can be attributed to that suspect.
--   called by: _pick      index: as _find_suspect and _claim
--   locks: the suspect, FOR NO KEY UPDATE SKIP LOCKED
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._pick_suspect(p_queues text[], p_known text[], p_worker uuid, p_lease_seconds float8)
returns setof gen_durable.claimed
language plpgsql
as $$
declare
    suspect record;
begin
    select * into suspect from gen_durable._find_suspect(p_queues, p_known);
    if suspect.id is not null then
        return query select * from gen_durable._claim(array[suspect.id], false, p_worker, p_lease_seconds);
    end if;
end $$;
