-- called by: store::fair::queues     index: queues_pkey
-- locks: nothing
select q.name, q.fair, q.tenant_shares::text as shares, q.fair_version as version
from gen_durable.queues q where q.name = any ($1::text[])
