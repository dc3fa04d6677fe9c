-- called by: store::lease::held     index: instances_held
-- locks: nothing
-- Returns the claims of a worker that are older than $2 seconds. The rows include cancelled
-- instances that keep their lane or partition key until this worker reports that their step has
-- ended; the cancel raised the claim_epoch of these instances by one.
select id, claim_epoch - (status = 'cancelled')::int as epoch, step_seq from gen_durable.instances
where locked_by = $1::text::uuid
  and updated_at < gen_durable.clock() - make_interval(secs => $2)
order by id
