-- Walks over all tenants, in pages. One worker at a time takes a page, and the pages of all workers
-- are one walk: how often a tenant is visited does not depend on the number of workers. `behind`
-- has a walk for each version of a projection.
create table gen_durable.log_walks (
    walk         text not null,                      -- behind, trim
    projection   text not null default '',
    version      int not null default 0,
    after_tenant text, -- the end of the last page; null: the next page is the first
    due_at       timestamptz not null default statement_timestamp(),
    primary key (walk, projection, version)
);
