-- Applies a page of a bulk action: changes the instances that still match, and records the
-- progress, in one transaction. Returns no row if the bulk action has ended, has another runner, or
-- is not at p_cursor any more; then nothing was changed.
--   called by: store::bulk::apply
--   index: bulk_actions_pkey, instances_pkey; as _retry, _cancel_live
--   locks: the bulk action; then the instances by id; then as _retry, _cancel_live
-- A page of more than one instance waits for no instance, since it would wait with the locks of the
-- others: it fails, and the runner sends a smaller page. A single instance is waited for. If a
-- single instance cannot be changed, the runner passes the reason as p_refusal, and no p_ids.
create function gen_durable._apply_bulk_page(
    p_id bigint, p_runner uuid, p_lease_seconds float8, p_cursor bigint, p_read_to bigint, p_examined int, p_is_last boolean,
    p_ids bigint[], p_refusal text
) returns table (changed int, refused int)
language plpgsql
as $$
-- planner: pinned, nested loops
#variable_conflict use_column
declare
    bulk gen_durable.bulk_actions;
    matching bigint[];
    kept_out bigint[];
    reasons text[] := array_remove(array[p_refusal], null);
begin
    perform gen_durable._require_read_committed();
    select b.* into bulk from gen_durable.bulk_actions b where b.id = p_id for no key update;
    if bulk.state is distinct from 'running' or bulk.runner is distinct from p_runner or bulk.cursor <> p_cursor then
        return;
    end if;
    if cardinality(p_ids) > 1 then
        perform i.id from gen_durable.instances i where i.id = any (p_ids) order by i.id for no key update nowait;
    else
        perform i.id from gen_durable.instances i where i.id = any (p_ids) for no key update;
    end if;
    matching := array(
        select i.id from gen_durable.instances i where i.id = any (p_ids) and gen_durable._bulk_matches(bulk, i));
    if bulk.action = 'retry' then
        kept_out := array(
            select i.id from gen_durable.instances i
            where i.id = any (matching)
              and (i.locked_by is not null
                   or i.held_key is null and 'runnable' = any (i.key_scope)
                      and exists (select from gen_durable.instances k where k.tenant = i.tenant and k.held_key = i.key))
            order by i.id);
        reasons := reasons || array(
            select format('instance %s: another instance holds its key, or its step still runs after a cancel', k.id)
            from unnest(kept_out) as k(id));
        changed := (select count(*)::int from gen_durable._retry(
            array(select m.id from unnest(matching) as m(id) where m.id <> all (kept_out)), bulk.retry_step, null));
    elsif bulk.action = 'cancel' then
        changed := coalesce(cardinality(gen_durable._cancel_live(matching, bulk.reason)), 0);
    else
        changed := cardinality(gen_durable._discard(matching, bulk.reason));
    end if;
    refused := cardinality(reasons);
    update gen_durable.bulk_actions b
    set cursor = p_read_to, examined = b.examined + p_examined,
        changed = b.changed + _apply_bulk_page.changed, refused = b.refused + _apply_bulk_page.refused,
        refusals = (b.refusals || reasons)[1:20],
        leased_until = statement_timestamp() + make_interval(secs => p_lease_seconds), updated_at = gen_durable.clock(),
        state = case when p_is_last then 'done' else b.state end,
        ended_at = case when p_is_last then gen_durable.clock() end
    where b.id = p_id;
    if p_is_last then
        insert into gen_durable.audit (actor, source, channel, action, subject, succeeded, outcome, ended_at)
        select b.actor, b.source, b.channel, format('bulk %s ended', b.action), format('bulk %s', b.id), true,
            format('%s changed, %s refused, %s examined', b.changed, b.refused, b.examined), gen_durable.clock()
        from gen_durable.bulk_actions b where b.id = p_id;
    end if;
    return next;
end $$;
