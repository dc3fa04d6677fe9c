-- Cancels an instance at once, whatever its status; with p_subtree also all its live descendants.
--   called by: store::signal::cancel, SQL
--   index: instances_pkey or instances_key; instances_children
--   locks: the live instances by id, the youngest first; then as _cancel_live
-- This function cancels the whole tree in one transaction; `_cancel_below` cancels a tree in pages.
-- Returns 'cancelled', 'too_late' (the instance is settled) or 'no_target'.
create function gen_durable.cancel(
    p_id bigint, p_tenant text, p_key text, p_machines text[], p_reason text, p_subtree boolean default false
) returns text
language plpgsql
as $$
-- planner: pinned
declare
    target record;
    ids bigint[] := '{}';
    wanted bigint[];
begin
    select i.id, i.machine into target from gen_durable.instances i
    where i.id = coalesce(p_id, (select k.id from gen_durable.instances k
                                 where k.tenant = coalesce(p_tenant, '') and k.held_key = p_key));
    if target.id is null or (p_machines is not null and target.machine <> all (p_machines)) then
        return 'no_target';
    end if;
    -- Locks children before their parents, as a settling child locks its own row and then its
    -- parent's. Reads the tree under the locks until it finds no new instance: a parent may have
    -- committed a spawn while this transaction waited for the lock of its row.
    loop
        wanted := array(
            with recursive below(id, live) as (
                select i.id, i.settled_at is null from gen_durable.instances i where i.id = target.id
                union all
                select c.id, c.settled_at is null
                from below join gen_durable.instances c on c.parent_id = below.id where p_subtree
            )
            select id from below where live);
        exit when not exists (select unnest(wanted) except select unnest(ids));
        ids := wanted;
        perform i.id from gen_durable.instances i where i.id = any (ids) order by i.id desc for no key update;
    end loop;
    ids := gen_durable._cancel_live(ids, p_reason);
    return case when target.id = any (ids) then 'cancelled' else 'too_late' end;
end $$;
