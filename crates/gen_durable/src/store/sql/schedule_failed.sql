-- called by: store::schedule::failed     index: schedules_pkey
-- locks: the schedule's row
update gen_durable.schedules set last_error = $2 where name = $1 and last_error is distinct from $2
