-- Pins the plans of every function that has a marker as the first line of its body. The markers
-- are:
--   `-- planner: pinned` allows only index scans. A statement that is planned while its table is
--   empty would keep a sequential scan after the table has grown. With these settings the statement
--   can only use an index, and the header of the function names the index. `nested loops` also
--   forbids hash and merge joins, which read a whole table or a whole index. `hash joins` allows
--   hash joins, for a statement that joins only its own arguments. `generic` makes
--   Postgres use a generic plan from the first call of a session, and not plan the first calls for
--   their values.
--
-- This file lists the settings once, so that no function repeats them. The marker is a part of the
-- function's source and is stored in the catalogue, so this file can be run in psql after any
-- change: `create or replace function` drops the settings of a function, and this file restores
-- them. A function that only pinned functions call has no marker: Postgres plans its statements
-- under the settings of the caller.
do $planner$
declare
    pinned record;
begin
    for pinned in
        select p.oid::regprocedure as name, substring(p.prosrc from '^\s*-- planner: (pinned[^\n]*)') as marker
        from pg_proc p
        where p.pronamespace = (select c.relnamespace from pg_class c where c.oid = 'gen_durable.instances'::regclass)
          and p.prosrc ~ '^\s*-- planner: pinned'
    loop
        execute format('alter function %s set search_path = gen_durable, pg_temp', pinned.name);
        execute format('alter function %s set enable_seqscan = off set enable_bitmapscan = off set jit = off', pinned.name);
        if pinned.marker ~ 'nested loops' then
            execute format('alter function %s set enable_hashjoin = off set enable_mergejoin = off', pinned.name);
        end if;
        if pinned.marker ~ 'hash joins' then
            execute format('alter function %s set enable_hashjoin = on', pinned.name);
        end if;
        if pinned.marker ~ 'generic' then
            execute format('alter function %s set plan_cache_mode = force_generic_plan', pinned.name);
        end if;
    end loop;
end $planner$;
