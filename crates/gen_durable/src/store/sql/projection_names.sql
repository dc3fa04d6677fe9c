-- called by: store::projections::names     index: none: all scopes, before logs are trimmed
-- locks: nothing
-- Every projection that follows the log of any tenant.
select distinct p.projection from gen_durable.projections p
