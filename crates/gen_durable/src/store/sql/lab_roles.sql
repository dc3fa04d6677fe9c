-- called by: store::lab::make_roles     index: none
-- locks: the catalogue rows of the roles; two labs that make them at once: the second finds them there
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
