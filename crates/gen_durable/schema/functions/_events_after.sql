-- Returns the events of a tenant after the position p_after, up to p_to: at most p_limit events and
-- about p_bytes of payload, but at least one event. Events with a name that is not in p_names have
-- no payload.
--   called by: _project_open, _run_open      index: events_log
--   locks: nothing
create function gen_durable._events_after(
    p_tenant text, p_after bigint, p_to bigint, p_names text[], p_limit int, p_bytes bigint
) returns table (pos bigint, at timestamptz, name text, version int, payload text, headers text, instance_id bigint, step text)
language sql stable
as $$
-- planner: pinned
    select f.position, f.at, f.name, f.version, case when f.name = any (p_names) then f.payload::text end, f.headers::text,
        f.instance_id, f.step
    from (
        select e.*, sum(pg_column_size(e.payload)) over (order by e.position) - pg_column_size(e.payload) as before
        from (
            select * from gen_durable.events e
            where e.tenant = p_tenant and e.position > p_after and e.position <= coalesce(p_to, 9223372036854775807)
            order by e.position
            limit p_limit
        ) e
    ) f
    where f.before < p_bytes
    order by f.position
$$;
