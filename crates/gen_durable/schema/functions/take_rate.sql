-- Takes a weight from the rates of a limit, outside of a step: for a web request that calls the
-- same API as the steps. Returns 0 if it took the weight, or after how many seconds to try again;
-- null if no worker has declared the limit. It takes from the rate of the whole limit and from that
-- of the key, or from none. Bounds of concurrency do not apply: a caller holds no claim.
--   called by: store::limit::take, SQL
--   index: limit_locks_pkey, limit_tokens_pkey; as _limit_room
--   locks: the lock of the limit until the end of the transaction. Commit at once: picks of steps
--   that take the limit wait 50 ms for it, and then leave those steps.
create function gen_durable.take_rate(p_name text, p_key text default '', p_weight float8 default 1) returns float8
language plpgsql
as $$
-- planner: pinned, nested loops
declare
    wait float8;
begin
    if p_weight < 0 then
        raise exception 'the weight must not be negative' using errcode = 'invalid_parameter_value';
    end if;
    perform from gen_durable.limit_locks l where l.name = p_name for no key update;
    if not found then
        return null;
    end if;
    -- As in `_serve_group`: a clock that was set back must not stop the rate.
    update gen_durable.limit_tokens t set at = gen_durable.clock()
    where t.name = p_name and t.key in ('', p_key) and t.at > gen_durable.clock() + interval '5 seconds';
    -- Callers of a paused limit try again every second.
    select max(case when r.next_at > gen_durable.clock()
                    then extract(epoch from least(r.next_at, greatest(gen_durable.clock() + interval '1 s', nullif(r.next_at, 'infinity'))) - gen_durable.clock())::float8
                    when r.per_second is null then 0
                    else greatest(0, least(p_weight, r.burst) - r.tokens) / r.per_second end)
    into wait
    from gen_durable._limit_room(array[p_name, p_name], array['', p_key]) r;
    if wait > 0 then
        return wait;
    end if;
    insert into gen_durable.limit_tokens as t (name, key, tokens, at)
    select distinct r.name, r.key, r.tokens - p_weight, gen_durable.clock()
    from gen_durable._limit_room(array[p_name, p_name], array['', p_key]) r
    where r.per_second is not null
    on conflict (name, key) do update set tokens = excluded.tokens, at = greatest(t.at, excluded.at);
    return 0;
end $$;
