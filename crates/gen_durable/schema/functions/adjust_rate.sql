-- Corrects what a start has taken from the rates of a limit: a positive p_more takes more, a
-- negative one gives back. For a weight that is known only after the call.
--   called by: store::limit::adjust, SQL
--   index: limit_locks_pkey, limit_tokens_pkey; as _limit_room
--   locks: the lock of the limit until the end of the transaction, as take_rate
-- Returns false if no worker has declared the limit.
create function gen_durable.adjust_rate(p_name text, p_key text, p_more float8) returns boolean
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    perform from gen_durable.limit_locks l where l.name = p_name for no key update;
    if not found then
        return false;
    end if;
    insert into gen_durable.limit_tokens as t (name, key, tokens, at)
    select distinct r.name, r.key, least(r.burst, r.tokens - p_more), gen_durable.clock()
    from gen_durable._limit_room(array[p_name, p_name], array['', p_key]) r
    where r.per_second is not null
    on conflict (name, key) do update set tokens = excluded.tokens, at = greatest(t.at, excluded.at);
    return true;
end $$;
