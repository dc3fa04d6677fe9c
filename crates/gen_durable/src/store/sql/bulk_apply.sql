-- called by: store::bulk::apply     index: as _apply_bulk_page
-- locks: as _apply_bulk_page
select changed, refused from gen_durable._apply_bulk_page($1, $2::text::uuid, $3, $4, $5, $6, $7, $8, $9)
