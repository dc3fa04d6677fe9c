-- called by: store::inspect::list     index: instances_pkey, backwards
-- locks: nothing
select id, tenant, machine, machine_version, step, data::text, state::text, status::text, result::text, last_error, queue, priority,
    attempt, eligible_at, inserted_at, updated_at, settled_at, lease_expires_at, locked_by::text, claim_epoch, step_seq,
    step_entry_seq, crash_count, traceparent, key, awaits, deadline_at, deadline_step, deadline_data::text, parent_id,
    parent_generation, join_generation, join_any, children_pending, partition_key, lane_key, lane_position, in_lane,
    lane_blocks, partition_waiting, arrival_no, failures
from gen_durable.instances
where ($1::text is null or machine = $1) and ($2::text is null or status = $2::gen_durable.durable_status)
  and ($3::text is null or queue = $3) and ($4::bigint is null or id < $4)
  and ($6::text is null or tenant = $6) and ($7::text is null or lane_key = $7) and ($8::text is null or partition_key = $8)
order by id desc
limit $5
