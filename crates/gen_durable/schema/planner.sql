-- Pins the plans of functions: of every function with a marker as the first line of its body.
--   `-- planner: pinned`: only index scans. A statement that is planned while its table is empty
--   would keep a sequential scan after the table has grown. With these settings it can only use an
--   index, and the header of the function names which one. `nested loops`: no hash or merge join,
--   which read a whole table, also over its index. `generic`: the first calls of a session are not
--   planned for their values.
--
-- The settings are listed once, here, and not in each function. The marker is visible where the
-- function is read, and is stored in the catalogue, so this file works in psql after any change:
-- `create or replace function` drops the settings of a function, and running this file again
-- restores them. A function that only pinned functions call carries no marker: its statements are
-- planned under their settings.
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
        if pinned.marker ~ 'generic' then
            execute format('alter function %s set plan_cache_mode = force_generic_plan', pinned.name);
        end if;
    end loop;
end $planner$;
