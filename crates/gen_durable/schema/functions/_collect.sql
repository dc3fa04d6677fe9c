-- Deletes settled instances after their retention: at most about p_limit, a page of each range
-- (queue, status) that has any. The retention is in seconds; with null or infinity, instances are
-- never deleted. The scan of a range begins at its cursor. When a scan has reached the end of the
-- range, and p_pause seconds plus one second per 10,000 rows examined (at most an hour) have passed
-- since the pass began, the next pass begins at the start of the range, and finds the instances
-- that were locked or still needed before.
--   called by: store::collect::collect
--   index: instances_settled, instances_pkey, collect_cursors_pkey
--   locks: the cursors, one range after the other, and instances, skipping locked rows
-- Returns how many instances were deleted, and whether a page was full.
create function gen_durable._collect(
    p_retention float8, p_failed_retention float8, p_pause float8, p_limit int
) returns table (deleted bigint, more boolean)
language plpgsql
as $$
-- planner: pinned, nested loops, generic
#variable_conflict use_column
declare
    range record;
    cur record;
    page_size int;
    cutoff timestamptz;
    times timestamptz[];
    ids bigint[];
    read_to timestamptz;
    gone bigint;
    gone_at bigint;
    total bigint := 0;
    is_full boolean := false;
begin
    for range in
        -- Finds the ranges (queue, status) by reading the index backwards, because the front of a
        -- range is full of index entries of deleted instances.
        with recursive ranges(queue, status) as (
            (select i.queue, i.status from gen_durable.instances i
             where i.settled_at is not null order by i.queue desc, i.status desc limit 1)
            union all
            select earlier.queue, earlier.status from ranges r
            cross join lateral (
                select i.queue, i.status from gen_durable.instances i
                where i.settled_at is not null and (i.queue, i.status) < (r.queue, r.status)
                order by i.queue desc, i.status desc limit 1
            ) earlier
        )
        select r.queue, r.status, count(*) over ()::int as ranges,
            case when r.status = 'done' then coalesce(q.retention, p_retention)
                 else coalesce(q.failed_retention, p_failed_retention) end as seconds
        from ranges r
        left join gen_durable.queues q on q.name = r.queue
    loop
        continue when range.seconds is null or range.seconds = 'infinity';
        insert into gen_durable.collect_cursors (queue, status) values (range.queue, range.status) on conflict do nothing;
        select * into cur from gen_durable.collect_cursors c
        where c.queue = range.queue and c.status = range.status
        for update skip locked;
        continue when not found;
        page_size := greatest(p_limit / range.ranges, 50);
        cutoff := gen_durable.clock() - make_interval(secs => range.seconds);
        select array_agg(p.settled_at),
            -- Keeps an instance that is still in its lane (it blocks the lane, or it is cancelled
            -- and its step still runs), and an instance with an arrival number, by which `_place`
            -- reads its lane or partition key.
            array_agg(p.id) filter (where not p.in_lane and p.arrival_no is null and p.locked_by is null and parent.reads is null)
        into times, ids
        from (
            select i.id, i.settled_at, i.in_lane, i.arrival_no, i.locked_by, i.parent_id, i.parent_generation
            from gen_durable.instances i
            where i.queue = range.queue and i.status = range.status and i.settled_at >= cur.at and i.settled_at < cutoff
            order by i.settled_at
            offset cur.kept_at limit page_size
        ) p
        left join lateral (
            -- Keeps children of the last spawn of a live parent, since the parent may still read
            -- their results.
            select true as reads from gen_durable.instances r
            where r.id = p.parent_id and r.settled_at is null and r.join_generation = p.parent_generation
            offset 0
        ) parent on true;
        -- Checks the conditions a second time under the lock of the instance, since an operator may
        -- have retried the instance. The `coalesce` prevents a scan of the index of settled
        -- instances, which a plain condition on `settled_at` would allow.
        ids := array(
            select i.id from gen_durable.instances i
            where i.id = any (ids) and coalesce(i.settled_at < cutoff, false) and not i.in_lane and i.arrival_no is null
              and i.locked_by is null
            for update skip locked);
        read_to := (select max(t) from unnest(times) t);
        with deleted as (
            delete from gen_durable.instances i where i.id = any (ids) returning i.settled_at
        )
        select count(*), count(*) filter (where d.settled_at = read_to) into gone, gone_at from deleted d;
        total := total + gone;
        if times is not null then
            update gen_durable.collect_cursors c
            set at = read_to, examined = c.examined + cardinality(times),
                kept_at = case when c.at = read_to then c.kept_at else 0 end
                          + (select count(*) from unnest(times) t where t = read_to) - gone_at
            where c.queue = range.queue and c.status = range.status;
        end if;
        if cardinality(times) = page_size then
            is_full := true;
        elsif gen_durable.clock() >= cur.pass_began_at
                + make_interval(secs => p_pause + least(3600, (cur.examined + coalesce(cardinality(times), 0)) / 10000)) then
            update gen_durable.collect_cursors c
            set at = '-infinity', kept_at = 0, examined = 0, pass_began_at = gen_durable.clock()
            where c.queue = range.queue and c.status = range.status;
        end if;
    end loop;
    return query select total, is_full;
end $$;
