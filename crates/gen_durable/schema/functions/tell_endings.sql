-- Records step results in the history: of the ids that `conclude` has written, with the values that
-- it wrote. Results without a history entry leave none.
--   called by: conclude      index: instances_pkey
--   locks: no existing row; the caller has locked the instances
create function gen_durable.tell_endings(p_endings jsonb, p_written bigint[]) returns void
language plpgsql
as $$
-- planner: pinned, nested loops
begin
    if not jsonb_path_exists(p_endings, '$[*].story') then
        return;
    end if;
    insert into gen_durable.transitions
        (instance_id, step_seq, claim_epoch, at, took_seconds, attempt, status, outcome, from_step, to_step, error, worker)
    select i.id, i.step_seq, i.claim_epoch, gen_durable.clock(), (e->'story'->>'took')::real, (e->'story'->>'attempt')::int,
        i.status, e->'story'->>'outcome', e->'story'->>'from', i.step,
        left(coalesce(e->'story'->>'error', e->>'error'), 1000), e->'story'->>'worker'
    from jsonb_array_elements(p_endings) x(e)
    join gen_durable.instances i on i.id = (e->>'id')::bigint
    where e->'story' ? 'from' and i.id = any (p_written);
    perform gen_durable.trim_story((e->>'id')::bigint, (e->>'seq')::bigint + 1)
    from jsonb_array_elements(p_endings) x(e)
    where e ? 'story' and (e->>'seq')::bigint >= 999 and ((e->>'seq')::bigint + 1) % 100 < 2
      and (e->>'id')::bigint = any (p_written);
end $$;
