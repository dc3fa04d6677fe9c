-- Returns how many bytes of payload the inbox of an instance may hold. `signal` rejects a signal
-- that would exceed this number.
--   called by: signal      index: none      locks: nothing
create function gen_durable._inbox_bytes_max() returns bigint
    language sql immutable parallel safe
    as 'select 8 * 1024 * 1024::bigint';
