-- Returns true for about one in p_n numbers, always the same ones. Work that is worth doing now and
-- then is bound to a number of the row instead of to random(): a commit that is run again does the
-- same. The hash prevents a resonance between p_n and the pattern in which an application enqueues.
--   called by: _promote_successors, _partition_successors      index: none      locks: nothing
-- IMMUTABLE and without SET, so that the planner inlines it.
create function gen_durable._one_in(p_n int, p_number bigint) returns boolean
    language sql immutable parallel safe
    as $$ select hashint8(p_number) % p_n = 0 $$;
