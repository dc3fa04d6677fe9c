-- Returns whether this transaction is at read committed, where every statement sees the rows that
-- were committed before the statement. A function that has waited for a lock then reads rows that
-- other transactions committed before it got the lock: a signal, or the successor in a lane. At
-- another isolation level the function would not find these rows.
--   called by: _require_read_committed, _lanes_at_once, _write_step_results_with_effects, _cancel_live
--   index: none      locks: nothing
create function gen_durable._is_read_committed() returns boolean
    language sql stable
    as $$ select current_setting('transaction_isolation') in ('read committed', 'read uncommitted') $$;
