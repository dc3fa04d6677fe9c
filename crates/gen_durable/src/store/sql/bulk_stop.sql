-- called by: store::bulk::stop     index: bulk_actions_pkey
-- locks: the bulk action
update gen_durable.bulk_actions b
set state = 'stopped', ended_at = gen_durable.clock(), updated_at = gen_durable.clock()
where b.id = $1 and b.ended_at is null
returning b.id
