-- Returns the time with which all due times are compared. In production this is the time of the
-- statement. The function is STABLE, so that a comparison with it stays an index condition. A test
-- schema replaces the body with a clock that tests move by hand. Leases do not use this function
-- but the real time.
--   called by: every statement that compares or writes a due time
--   index: none      locks: nothing
create function gen_durable.clock() returns timestamptz
    language sql stable parallel safe
    as 'select statement_timestamp()';
