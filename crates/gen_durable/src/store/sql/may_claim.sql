-- called by: store::pick::may_claim     index: instances_pick, instances_suspects, limit_backlog_ready, placement_watermarks_pkey, instances_arrival_no, one probe each
-- locks: nothing
select may_claim, next_due, now from gen_durable._may_claim($1, $2, $3, $4, $5)
