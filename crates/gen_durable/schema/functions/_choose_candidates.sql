-- Chooses the candidates of a pick that may begin, and returns their ids: those without limits, and
-- those that `_admit` lets begin. The others get the status `awaiting_limit`. Without the locks of
-- the limits, it chooses only instances without limits, and the others stay runnable.
--   called by: _pick_limited      index: as _admit and _park
--   locks: as _admit; the caller has locked the candidates
-- It runs under the planner settings of its callers (see schema/planner.sql).
create function gen_durable._choose_candidates(p_ids bigint[], p_groups text[], p_weights float8[], p_is_locked boolean) returns bigint[]
language plpgsql
as $$
declare
    limited bigint[];
    chosen bigint[];
    admitted bigint[] := '{}';
begin
    select array_agg(c.id), array_agg(c.id) filter (where c.limit_group is null) into limited, chosen
    from unnest(p_ids, p_groups) as c(id, limit_group);
    if p_is_locked and cardinality(chosen) is distinct from cardinality(p_ids) then
        select gen_durable._admit(array_agg(c.id order by c.nth), array_agg(c.limit_group order by c.nth),
                                  array_agg(c.weight order by c.nth), true),
            array_agg(c.id)
        into admitted, limited
        from unnest(p_ids, p_groups, p_weights) with ordinality as c(id, limit_group, weight, nth)
        where c.limit_group is not null;
        if cardinality(admitted) < cardinality(limited) then
            perform gen_durable._park(array(select unnest(limited) except select unnest(admitted)));
        end if;
    end if;
    return coalesce(chosen, '{}') || admitted;
end $$;
