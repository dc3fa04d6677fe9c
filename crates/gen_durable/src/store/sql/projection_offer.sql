-- called by: store::projections::offer     index: projections_pkey if a tenant is given; otherwise all scopes, once per start of an engine
-- locks: the rows of the scopes, skipping rows that another transaction holds: the worker that
-- opens a skipped scope records the offer later
-- Records in the row of a scope that the projection's rows are of an older version and that a newer
-- build does not rebuild these rows by itself, so that operators see that a rebuild is due.
with old as materialized (
    select p.tenant, p.projection, w.version
    from unnest($1::text[], $2::int[]) as w(projection, version)
    join gen_durable.projections p on p.projection = w.projection
    where p.version < w.version and coalesce(p.offered, 0) < w.version and ($3::text is null or p.tenant = $3)
    for no key update of p skip locked
)
update gen_durable.projections p set offered = old.version
from old where p.tenant = old.tenant and p.projection = old.projection
