-- Deletes the signals that steps had received, once the steps have progressed or settled. A signal
-- with a dedup key stays without its payload.
--   called by: _write_step_results_with_effects      index: signals_pkey
--   locks: the signals of instances that the caller has locked
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._consume_signals(p_results jsonb, p_written bigint[]) returns void
language plpgsql
as $$
begin
    with used as (
        select x.value::bigint as id
        from jsonb_array_elements(p_results) e
        cross join lateral jsonb_array_elements_text(e->'consumed') x
        where e ? 'consumed' and (e->>'id')::bigint = any (p_written)
    ), gone as (
        delete from gen_durable.signals s using used where s.id = used.id and s.dedup_key is null
    )
    update gen_durable.signals s set consumed_at = gen_durable.clock(), payload = 'null'
    from used where s.id = used.id and s.dedup_key is not null;
end $$;
