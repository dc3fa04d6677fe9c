-- called by: store::search::page, before it reads rows     index: as _search_floor
-- locks: nothing
select reached, reached_at, rows_read from gen_durable._search_floor($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
