-- Returns the inbox of an instance as JSON: [[id, name, payload], ...], the oldest signal first;
-- null if the inbox is empty. `_pick` and `_write_step_results` repeat this expression and do not
-- call the function: a function call per row costs more than the read.
--   called by: _pick_suspect, _set_aside_refused, _write_step_results_with_effects, inputs.sql
--   index: signals_inbox      locks: nothing
create function gen_durable._inbox_of(p_id bigint) returns text
    language sql stable
    as $$
        select jsonb_agg(jsonb_build_array(s.id, s.name, s.payload) order by s.id)::text
        from gen_durable.signals s
        where s.target_id = p_id and s.consumed_at is null
    $$;
