-- called by: store::search::page     index: as _search_rows
-- locks: nothing
select id, tenant, machine, machine_version, step, status, queue, priority, attempt, eligible_at, inserted_at, updated_at,
    settled_at, key, parent_id, last_error, awaits
from gen_durable._search_rows($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
