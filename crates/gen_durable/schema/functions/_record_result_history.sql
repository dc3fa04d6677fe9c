-- Inserts history rows for the step results that `_write_step_results_with_effects` has written,
-- with the values of the updated rows. A result without the entry `history` adds no row.
--   called by: _write_step_results_with_effects      index: instances_pkey
--   locks: no existing row; the caller has locked the instances
create function gen_durable._record_result_history(p_results jsonb, p_written bigint[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    if not jsonb_path_exists(p_results, '$[*].history') then
        return;
    end if;
    insert into gen_durable.history
        (instance_id, step_seq, claim_epoch, at, took_seconds, attempt, status, outcome, from_step, to_step, error, worker)
    select i.id, i.step_seq, i.claim_epoch, gen_durable.clock(), (e->'history'->>'took')::real, (e->'history'->>'attempt')::int,
        i.status, e->'history'->>'outcome', e->'history'->>'from', i.step,
        left(coalesce(e->'history'->>'error', e->>'error'), 1000), e->'history'->>'worker'
    from jsonb_array_elements(p_results) x(e)
    join gen_durable.instances i on i.id = (e->>'id')::bigint
    where e->'history' ? 'from' and i.id = any (p_written);
    perform gen_durable._trim_history((e->>'id')::bigint, (e->>'seq')::bigint + 1)
    from jsonb_array_elements(p_results) x(e)
    where e ? 'history' and (e->>'seq')::bigint >= 999 and ((e->>'seq')::bigint + 1) % 100 < 2
      and (e->>'id')::bigint = any (p_written);
end $$;
