-- Every object of gen_durable is in this schema and is named with it. An installation under another
-- name replaces the name in these files (`Target::render`).
create schema gen_durable;
