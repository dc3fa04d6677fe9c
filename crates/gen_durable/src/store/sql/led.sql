-- called by: store::lease::led     index: lanes_led, instances_lane
-- locks: nothing
-- Who is at the head of a lane that this worker leads, and is not claimed: a part of the lanes, after ($2, $3).
select tenant, key, id, claim_epoch, step_seq, status = 'queued' from gen_durable.led_heads($1::text::uuid, $2, $3, $4)
