-- Appends the events of the step results that were written. In a step's own transaction, which the
-- caller ends, it locks no log heads.
--   called by: _write_step_results_with_effects      index: as _append
--   locks: log heads by tenant, skipping locked rows
create function gen_durable._record_result_events(p_results jsonb, p_written bigint[], p_own_transaction boolean) returns void
language plpgsql
set search_path = gen_durable, pg_temp
as $$
begin
    perform from (
        select array_agg(r->>'tenant' order by o, n) tenants, array_agg(r->>'name' order by o, n) names,
            array_agg((r->>'version')::int order by o, n) versions, array_agg((r->'payload')::text order by o, n) payloads,
            array_agg((r->'headers')::text order by o, n) headers,
            array_agg((e->>'id')::bigint order by o, n) instances, array_agg(r->>'step' order by o, n) steps
        from jsonb_array_elements(p_results) with ordinality x(e, o)
        cross join lateral jsonb_array_elements(e->'events') with ordinality y(r, n)
        where e ? 'events' and (e->>'id')::bigint = any (p_written)
    ) a
    cross join lateral gen_durable._append(a.tenants, a.names, a.versions, a.payloads, a.headers, a.instances, a.steps,
        case when p_own_transaction then 'none' else 'skip' end)
    where a.tenants is not null;
end $$;
