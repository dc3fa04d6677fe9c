-- Deletes rows of rates that are full again: a rate without a row is full. Reads up to p_limit rows
-- after (p_name, p_key), and returns the last one that it read, or null at the end of the table,
-- with the number of deleted rows.
--   called by: store::limit::collect      index: limit_tokens_pkey, limit_locks_pkey; as
--   _limit_room
--   locks: the limits of the rows, skipping those that a pick or a caller has locked, and then the
--   rows that it deletes
create function gen_durable._collect_rates(p_limit int, p_name text, p_key text, out name text, out key text, out deleted bigint)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    names text[];
    keys text[];
    locked text[];
begin
    select array_agg(t.name order by t.name, t.key), array_agg(t.key order by t.name, t.key) into names, keys
    from (select t.name, t.key from gen_durable.limit_tokens t
          where (t.name, t.key) > (p_name, p_key) order by t.name, t.key limit p_limit) t;
    locked := array(select l.name from gen_durable.limit_locks l where l.name = any (names) order by l.name for no key update skip locked);
    delete from gen_durable.limit_tokens t
    using gen_durable._limit_room(names, keys) r
    where t.name = r.name and t.key = r.key and r.tokens >= r.burst and r.name = any (locked);
    get diagnostics deleted = row_count;
    if cardinality(names) = p_limit then
        name := names[p_limit];
        key := keys[p_limit];
    end if;
end $$;
