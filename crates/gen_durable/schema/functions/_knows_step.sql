-- Returns whether a worker that knows the steps p_known can run an instance at the step p_step.
-- Entries of p_known are 'machine/version/step'. An entry 'machine/version' stands for every step
-- of that version: the worker upgrades such rows, and the machine's `upgrade` decides about their
-- steps.
--   called by: _pick, _pick_suspect, _set_aside_refused, _claim_successors,
--   store::queue::stuck_page, store::inspect, store::explain
--   index: none      locks: nothing
-- The function is STABLE and has no SET clause, so that the planner inlines it: a call per row
-- would cost more than the comparison.
create function gen_durable._knows_step(p_known text[], p_machine text, p_version int, p_step text) returns boolean
    language sql stable
    as $$ select p_machine || '/' || p_version || '/' || p_step = any (p_known) or p_machine || '/' || p_version = any (p_known) $$;
