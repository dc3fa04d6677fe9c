-- Returns a page of the children of one spawn as JSON, in the order of the spawn: {"more": ...,
-- "children": [...]}. The page ends after 1,000 children or before the child that would exceed 8
-- MiB; it has at least one child. `more` is true if the spawn has further children.
--   called by: _pick, _pick_suspect, _set_aside_refused, _write_step_results, _claim_successors,
--   _write_step_results_with_effects, store::family::page
--   index: instances_children
--   locks: nothing
create function gen_durable._children_of(p_id bigint, p_generation int, p_after bigint default 0, p_machines text[] default null)
returns text
language plpgsql stable
as $$
-- planner: pinned
declare
    child record;
    one text;
    page text[] := '{}';
    bytes bigint := 0;
    more boolean := false;
begin
    -- Reads the children row by row, so that values beyond the end of the page are never read from
    -- their TOAST table.
    for child in
        select c.id, c.machine, c.status, c.state, c.result, c.last_error, c.attempt, c.failures
        from gen_durable.instances c
        where c.parent_id = p_id and c.parent_generation = p_generation and c.id > p_after
          and (p_machines is null or c.machine = any (p_machines))
        order by c.id
        limit 1001
    loop
        one := concat('{"id": ', child.id, ', "machine": ', to_json(child.machine), ', "status": "', child.status, '", "state": ', child.state,
            ', "result": ', coalesce(child.result::text, 'null'), ', "error": ', coalesce(to_json(child.last_error)::text, 'null'),
            ', "attempt": ', child.attempt, ', "failures": ', child.failures, '}');
        bytes := bytes + octet_length(one);
        more := cardinality(page) = 1000 or (bytes > 8 * 1024 * 1024 and cardinality(page) > 0);
        exit when more;
        page := page || one;
    end loop;
    return concat('{"more": ', more::text, ', "children": [', array_to_string(page, ', '), ']}');
end $$;
