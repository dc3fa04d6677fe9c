-- called by: store::projections::digest     index: the caller's
-- locks: nothing
-- The order of the rows does not matter, and nothing is held in memory: a sum of hashes, and how many there are.
select sha256(convert_to(concat_ws(':', count(*), sum(hashtextextended(r::text, 0)::numeric),
    sum(hashtextextended(r::text, 1)::numeric), sum(hashtextextended(r::text, 2)::numeric)), 'UTF8'))
from (the_rows) r
