-- called by: store::bulk::page     index: as _bulk_page
-- locks: nothing
select cursor, ids, read_to, examined, is_last from gen_durable._bulk_page($1, $2, $3)
