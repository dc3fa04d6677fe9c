-- called by: store::queue::unstick     index: instances_stuck
-- locks: instances by id, skipping what is held
with able as materialized (
    select id from gen_durable.instances
    where status = 'stuck' and fsm || '/' || fsm_version = any ($1::text[])
    order by id
    limit 10000
    for no key update skip locked
)
update gen_durable.instances i
set status = 'runnable', eligible_at = greatest(i.eligible_at, gen_durable.clock()), updated_at = gen_durable.clock(),
    held_back = i.partition_key is not null,
    arrival = case when i.partition_key is not null then nextval('gen_durable.arrivals') else i.arrival end
from able
where i.id = able.id
returning i.id, gen_durable.tell_woken(array[i.id], 'another build')
