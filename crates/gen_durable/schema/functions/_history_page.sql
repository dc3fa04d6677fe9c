-- Returns a page of the history of an instance before (p_seq, p_epoch), the newest row first.
-- Sorting is off, since without statistics the planner expects few rows per instance, and would
-- read and sort the whole history of the instance for one page.
--   called by: store::history::Inspect::history      index: history_pkey, backwards
--   locks: nothing
create function gen_durable._history_page(p_id bigint, p_seq bigint, p_epoch bigint, p_limit int)
returns setof gen_durable.history
language plpgsql stable
set enable_sort = off
as $$
-- planner: pinned
begin
    return query
    select t.* from gen_durable.history t
    where t.instance_id = p_id and (t.step_seq, t.claim_epoch) < (p_seq, p_epoch)
    order by t.step_seq desc, t.claim_epoch desc
    limit p_limit;
end $$;
