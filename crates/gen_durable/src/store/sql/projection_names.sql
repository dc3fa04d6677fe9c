-- called by: store::projections::names     index: projections_by_name
-- locks: nothing
-- Returns the names of all projections that have a scope. The recursive query is a loose index
-- scan: it jumps from one name to the next, whatever the number of scopes.
with recursive name as (
    (select p.projection from gen_durable.projections p order by p.projection limit 1)
    union all
    select (select p.projection from gen_durable.projections p where p.projection > name.projection order by p.projection limit 1)
    from name where name.projection is not null
)
select name.projection from name where name.projection is not null
