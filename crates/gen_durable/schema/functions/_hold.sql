-- Writes the second and further limits of these instances to limit_holds. The caller claims the
-- instances before it ends, so the rows name the next claim.
--   called by: _admit      index: instances_pkey, limit_holds_pkey
--   locks: the rows that it writes. The caller holds the locks of the limits.
create function gen_durable._hold(p_ids bigint[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    insert into gen_durable.limit_holds as h (name, key, instance_id, claim_epoch)
    select p.name, p.key, i.id, i.claim_epoch + 1
    from unnest(p_ids) as admitted(id)
    join gen_durable.instances i on i.id = admitted.id
    cross join lateral gen_durable._limit_pairs(i.limit_group) p
    where p.nth > 1
    order by p.name, p.key, i.id
    on conflict (name, key, instance_id) do update set claim_epoch = excluded.claim_epoch;
end $$;
