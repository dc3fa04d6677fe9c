create table gen_durable.migrations (
    version       int primary key,
    name          text not null,
    -- Builds that were made for this schema version or a later one work with this schema.
    oldest_served int not null,
    installed_at  timestamptz not null default statement_timestamp()
);
