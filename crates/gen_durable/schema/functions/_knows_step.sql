-- Returns whether a worker that knows these steps can run an instance at this step. Entries are
-- 'machine/version/step'; an entry 'machine/version' stands for every step: the worker upgrades
-- rows of that version, and its `upgrade` decides about their steps.
--   called by: _pick, _pick_suspect, _set_aside_refused, _promote_successors, _claim_partition_successors,
--   store::queue::retry_stuck, store::inspect, store::explain
--   index: none      locks: nothing
-- STABLE and without SET, so that the planner inlines it: a call per row would cost more than the
-- comparison.
create function gen_durable._knows_step(p_known text[], p_machine text, p_version int, p_step text) returns boolean
    language sql stable
    as $$ select p_machine || '/' || p_version || '/' || p_step = any (p_known) or p_machine || '/' || p_version = any (p_known) $$;
