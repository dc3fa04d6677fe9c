-- called by: store::inspect::many     index: instances_pkey
-- locks: nothing
select id, tenant, machine, machine_version, step, data::text, state::text, status::text, result::text, last_error, queue, priority,
    attempt, eligible_at, inserted_at, updated_at, settled_at, lease_expires_at, locked_by::text, claim_epoch, step_seq,
    step_entry_seq, crash_count, traceparent, key, awaits, deadline_at, deadline_step, deadline_data::text, parent_id,
    parent_generation, join_generation, join_any, children_pending, partition_key, lane_key, lane_position, in_lane,
    lane_blocks, partition_waiting, arrival_no, failures
from gen_durable.instances
where id = any ($1::bigint[])
