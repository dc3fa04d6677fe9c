-- called by: store::lease::led     index: lanes_worker, instances_lane
-- locks: nothing
-- Returns the heads of the lanes that this worker runs, and whether each runs without a claim: a
-- page of the lanes after ($2, $3).
select tenant, key, id, claim_epoch, step_seq, status = 'queued' from gen_durable._worker_lane_heads($1::text::uuid, $2, $3, $4)
