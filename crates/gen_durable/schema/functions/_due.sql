-- Returns when an instance is due: at a date, or after a delay in seconds. A date in the past
-- becomes now, so that no row appears behind the point up to which a picker has read. A delay is at
-- most a hundred years, and a date is at most the last that a client can read (dates in Rust end
-- with the year 9999): a row with a later date would make every query that returns it fail.
--   called by: enqueue_all, _enqueue_keyed, store::enqueue      index: none      locks: nothing
create function gen_durable._due(p_at timestamptz, p_delay float8) returns timestamptz
    language sql stable parallel safe
    as $$
        select least(greatest(coalesce(p_at, gen_durable.clock() + make_interval(secs => least(coalesce(p_delay, 0), 3162240000))),
            gen_durable.clock()), timestamptz '9999-12-30 22:00:00+00')
    $$;
