-- Returns an id below which all instances were inserted before p_at, by a binary search over the
-- ids: ids are drawn in the order of time, and `inserted_at` is the time at which the statement of
-- an instance began. A statement that takes long inserts instances with larger ids than others of
-- their time, so a caller adds the duration of the longest statement to p_at.
--   called by: search_period.sql      index: instances_pkey
--   locks: nothing
create function gen_durable._first_id_at(p_at timestamptz) returns bigint
language plpgsql stable
as $$
-- planner: pinned
declare
    low bigint;   -- all instances up to this id are older than p_at
    high bigint;  -- no instance from this id on is older than p_at
    middle bigint;
    probed record;
begin
    select coalesce(min(i.id), 1) - 1, coalesce(max(i.id), 0) + 1 into low, high from gen_durable.instances i;
    while low + 1 < high loop
        middle := low + (high - low) / 2;
        select i.id, i.inserted_at into probed
        from gen_durable.instances i where i.id >= middle and i.id < high order by i.id limit 1;
        if found and probed.inserted_at < p_at then
            low := probed.id;
        else
            high := middle;
        end if;
    end loop;
    return high;
end $$;
