-- called by: store::pick::next_claim     index: instances_pick, instances_arrival_no, limit_backlog_ready, one probe each
-- locks: nothing
select gen_durable._next_claim($1, $2, $3, $4, $5, $6, $7) as next_due, gen_durable.clock() as now
