-- Returns how many bytes of payload may wait in an inbox. `signal` refuses a signal beyond that.
--   called by: signal      index: none      locks: nothing
create function gen_durable._inbox_bytes_max() returns bigint
    language sql immutable parallel safe
    as 'select 8 * 1024 * 1024::bigint';
