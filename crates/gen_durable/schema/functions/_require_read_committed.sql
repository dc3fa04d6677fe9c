-- Raises an error unless the transaction is at read committed.
--   called by: _pick, _write_step_results
--   index: none      locks: nothing
create function gen_durable._require_read_committed() returns void
    language plpgsql
    as $$
begin
    if not gen_durable._is_read_committed() then
        raise exception 'gen_durable needs the isolation level read committed, and this transaction is at %: alter role % set default_transaction_isolation = ''read committed''',
            current_setting('transaction_isolation'), quote_ident(session_user)
            using errcode = 'invalid_transaction_state';
    end if;
end $$;
