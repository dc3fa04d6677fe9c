-- called by: store::projections::digest     index: the caller's
-- locks: nothing
-- Computes a digest of the rows of a projection. The digest does not depend on the order of the
-- rows, and its computation needs constant memory: sums of hashes, and the number of rows.
select sha256(convert_to(concat_ws(':', count(*), sum(hashtextextended(r::text, 0)::numeric),
    sum(hashtextextended(r::text, 1)::numeric), sum(hashtextextended(r::text, 2)::numeric)), 'UTF8'))
from (the_rows) r
