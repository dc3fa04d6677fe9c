-- Locks the limits of these groups, in the order of their names. Returns false, and holds no lock,
-- if another transaction has not released one of them within 50 ms. Afterwards it deletes the rows
-- of limit_holds that are of these limits and of claims that have ended.
--   called by: _pick_limited      index: limit_locks_pkey, limit_holds_pkey, instances_pkey
--   locks: rows of limit_locks, FOR NO KEY UPDATE
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._lock_limits(p_groups text[]) returns boolean
language plpgsql
as $$
declare
    wanted text[] := array(
        select p.name from (select distinct g.limit_group from unnest(p_groups) g(limit_group) where g.limit_group is not null) g
        cross join lateral gen_durable._limit_pairs(g.limit_group) p
        group by p.name order by p.name);
begin
    if wanted = '{}' then
        return true;
    end if;
    perform set_config('lock_timeout', '50ms', true);
    begin
        perform from gen_durable.limit_locks l where l.name = any (wanted) order by l.name for no key update;
    exception when lock_not_available or deadlock_detected then
        return false;
    end;
    if exists (select from gen_durable.limit_holds h where h.name = any (wanted)) then
        delete from gen_durable.limit_holds h
        where h.name = any (wanted) and not exists (
            select from gen_durable.instances i
            where i.id = h.instance_id and i.claim_epoch in (h.claim_epoch, h.claim_epoch + (i.status = 'cancelled')::int)
              and (i.status = 'executing' or i.locked_by is not null));
    end if;
    return true;
end $$;
