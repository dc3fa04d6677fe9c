-- Returns true for about one in p_n numbers, and always for the same numbers. Functions use it for
-- work that they do only now and then. They pass a number of the instance and do not use random(),
-- so that a commit that is sent twice does the same work. The function hashes the number, so that
-- p_n does not coincide with a pattern in which an application enqueues instances.
--   called by: _promote_successors, _partition_successors      index: none      locks: nothing
-- The function is IMMUTABLE and has no SET clause, so that the planner inlines it.
create function gen_durable._one_in(p_n int, p_number bigint) returns boolean
    language sql immutable parallel safe
    as $$ select hashint8(p_number) % p_n = 0 $$;
