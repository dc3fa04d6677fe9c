-- called by: store::migrate::installed     index: pg_class's own
-- locks: nothing
select to_regclass(quote_ident($1) || '.migrations') is not null
