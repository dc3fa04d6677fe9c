-- Returns the generation of the rows that readers of a projection have to read. Call it in the
-- statement that reads the rows, or in the same REPEATABLE READ transaction.
--   called by: SQL, projections of applications      index: projections_pkey      locks: nothing
create function gen_durable.generation(p_tenant text, p_projection text) returns int
    language sql stable parallel safe
    as $$ select coalesce((select p.generation from gen_durable.projections p
                           where p.tenant = p_tenant and p.projection = p_projection), 1) $$;
