create table gen_durable.migrations (
    version       int primary key,
    name          text not null,
    -- The oldest schema version that a build may have been made for and still work with this
    -- schema.
    oldest_served int not null,
    installed_at  timestamptz not null default statement_timestamp()
);
