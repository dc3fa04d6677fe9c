-- called by: store::lease::lane_heads     index: lanes_worker, instances_lane
-- locks: nothing
-- Returns the heads of a page of the lanes of which this worker is the lane worker, after ($2, $3),
-- and for each head whether the worker runs it without a claim.
select tenant, key, id, claim_epoch, step_seq, status = 'queued' from gen_durable._worker_lane_heads($1::text::uuid, $2, $3, $4)
