-- Passes over the logs of all tenants, in pages. One worker at a time reads a page, and the pages
-- of all workers together are one pass, so how often a tenant is read does not depend on the number
-- of workers. The pass `trim` deletes old events. The pass `behind` finds projections that have not
-- read the end of a log; there is one for each version of a projection.
create table gen_durable.log_walks (
    walk         text not null,                      -- behind, trim
    projection   text not null default '',
    version      int not null default 0,
    after_tenant text, -- the end of the last page; null: the next page is the first
    due_at       timestamptz not null default statement_timestamp(),
    primary key (walk, projection, version)
);
