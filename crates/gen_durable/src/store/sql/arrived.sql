-- called by: store::pulse::arrived     index: instances_pkey, backwards
-- locks: nothing
-- Counts new instances by the second in which a transaction inserted them, among the newest $2
-- instances with an id above $1.
select extract(epoch from date_trunc('second', looked.inserted_at))::bigint as second, count(*) as count, max(looked.id) as newest
from (
    select i.id, i.inserted_at from gen_durable.instances i where i.id > $1 order by i.id desc limit $2
) looked
group by 1
