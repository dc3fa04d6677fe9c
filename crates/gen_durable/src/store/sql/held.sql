-- called by: store::lease::held     index: instances_held
-- locks: nothing
-- Also cancelled instances whose step this worker has not reported as ended, by the claim that it had.
select id, claim_epoch - (status = 'cancelled')::int, step_seq from gen_durable.instances
where locked_by = $1::text::uuid
  and updated_at < gen_durable.clock() - make_interval(secs => $2)
order by id
