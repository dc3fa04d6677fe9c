-- called by: store::lab::make_roles     index: none
-- locks: the catalog rows of the roles; if two labs create the roles at the same time, the second
-- lab finds the roles of the first
do $$
declare wanted text;
begin
    foreach wanted in array array['gen_durable_runtime', 'gen_durable_reader'] loop
        begin
            execute format('create role %I login', wanted);
        exception when duplicate_object or unique_violation then null;
        end;
    end loop;
end $$;
