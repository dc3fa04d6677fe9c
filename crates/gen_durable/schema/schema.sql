-- Every object of gen_durable is in this schema, and these files write its name with the schema. An
-- installation in a schema of another name replaces the name in these files (`Target::render`).
create schema gen_durable;
