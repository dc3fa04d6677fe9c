-- Returns the limits of a group: their names and keys. A group is the text `name\1key`, and with
-- several limits `name\1key\2name\1key`, sorted by name. A key may be empty. Neither names nor keys
-- contain control characters, so in the order of bytes the claims of a limit are the range from
-- `name\1` to `name\2`, and those of a key are the range from `name\1key` to `name\1key\3`.
--   called by: _pick_limited, _admit, _serve_group, store::explain      index: none      locks: nothing
create function gen_durable._limit_pairs(p_group text) returns table (nth bigint, name text, key text)
    language sql immutable
    as $$ select u.nth, split_part(u.pair, chr(1), 1), split_part(u.pair, chr(1), 2)
          from unnest(string_to_array(p_group, chr(2))) with ordinality as u(pair, nth) $$;
