-- Returns the fingerprint of an error: the beginning of its text, without the numbers and the
-- quoted names that differ from one instance to another. The fingerprint of a fingerprint is
-- itself.
--   called by: _error_group, failure_groups.sql      index: none      locks: nothing
-- Each word with a digit, each long hexadecimal word, and each group of these becomes `#`, and each
-- quoted name becomes `…`. The patterns contain only ASCII, so the result does not depend on the
-- collation of the database.
create function gen_durable._error_fingerprint(p_error text) returns text
    language sql immutable parallel safe
    as $$
select btrim(left(regexp_replace(regexp_replace(regexp_replace(left(p_error, 500),
    '"[^"]*"|`[^`]*`', '…', 'g'),
    '[A-Za-z]*[0-9][A-Za-z0-9]*|[A-Fa-f]{8,}|[A-Fa-f0-9]{8}-[A-Fa-f0-9]{4}-[A-Fa-f0-9]{4}-[A-Fa-f0-9]{4}-[A-Fa-f0-9]{12}', '#', 'g'),
    '#([-.:]#)+', '#', 'g'), 200))
$$;
