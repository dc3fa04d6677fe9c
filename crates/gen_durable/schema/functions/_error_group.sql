-- Returns the number of the group of an error: the hash of its fingerprint.
--   called by: the generated column instances.error_group, _error_group_of
--   index: none      locks: nothing
create function gen_durable._error_group(p_error text) returns bigint
    language sql immutable parallel safe
    as $$select hashtextextended(coalesce(gen_durable._error_fingerprint(p_error), ''), 0)$$;
