-- called by: store::fair::page     index: instances_pick, instances_pkey
-- locks: instances of the page that are not in instances_fair, FOR NO KEY UPDATE SKIP LOCKED
select reached::text, tenants::text, is_indexed, gen_durable.clock() as now from gen_durable._fair_page($1, $2, $3, $4, $5, $6)
