-- Sends the signals of step results in one batch, since `signal_all` locks all targets in one
-- order. Raises an error if a signal cannot be delivered, so that no result of this batch is
-- written.
--   called by: _write_step_results_with_effects      index: as signal_all      locks: as signal_all
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._send_effects(p_results jsonb, p_written bigint[]) returns void
language plpgsql
as $$
declare
    signals jsonb;
    refused text;
    reason text;
begin
    signals := (select jsonb_agg(l) from jsonb_array_elements(p_results) e
                cross join lateral jsonb_array_elements(e->'signals') l
                where e ? 'signals' and (e->>'id')::bigint = any (p_written));
    if signals is null then
        return;
    end if;
    select signals->(a.place - 1)->>'name', a.answer into refused, reason
    from gen_durable.signal_all(signals) a where a.answer in ('no_target', 'inbox_full') limit 1;
    if found then
        -- P0D01 means that the inbox of a target is full. A later retry of the step may succeed, so
        -- the policy of the step decides about retries (see store::fault).
        raise exception 'signal % was not delivered: %', refused, reason
            using errcode = case reason when 'inbox_full' then 'P0D01' else '23503' end;
    end if;
end $$;
