-- Returns whether every statement of this transaction sees what was committed before it. The engine
-- reads under a lock what was committed before it got the lock: a signal, or the successor in a
-- lane. At another isolation level it would not find that.
--   called by: _require_read_committed, _lanes_at_once, _write_step_results_with_effects, _cancel_live
--   index: none      locks: nothing
create function gen_durable._is_read_committed() returns boolean
    language sql stable
    as $$ select current_setting('transaction_isolation') in ('read committed', 'read uncommitted') $$;
