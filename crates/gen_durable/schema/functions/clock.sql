-- The only clock for due times. In production it is the time of the statement: STABLE, so that a
-- comparison with it stays an index condition. A test schema replaces the body and moves every due
-- time at once. Leases use the real time.
--   called by: every statement that compares or writes a _due time
--   index: none      locks: nothing
create function gen_durable.clock() returns timestamptz
    language sql stable parallel safe
    as 'select statement_timestamp()';
