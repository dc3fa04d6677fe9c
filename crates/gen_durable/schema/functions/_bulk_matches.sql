-- Returns whether an instance meets the conditions of a bulk action.
--   called by: _bulk_page, _apply_bulk_page      index: none      locks: nothing
-- Postgres inlines this function into the statements that call it.
create function gen_durable._bulk_matches(p_bulk gen_durable.bulk_actions, p_instance gen_durable.instances) returns boolean
language sql stable
as $$
    select p_instance.status = p_bulk.status
       and (p_bulk.machine is null or p_instance.machine = p_bulk.machine)
       and (p_bulk.machine_version is null or p_instance.machine_version = p_bulk.machine_version)
       and (p_bulk.step is null or p_instance.step = p_bulk.step)
       and (p_bulk.queue is null or p_instance.queue = p_bulk.queue)
       and (p_bulk.tenant is null or p_instance.tenant = p_bulk.tenant)
       and (p_bulk.key is null or p_instance.key = p_bulk.key)
       and (p_bulk.key_prefix is null or starts_with(p_instance.key, p_bulk.key_prefix))
       and (p_bulk.lane is null or p_instance.lane_key = p_bulk.lane)
       and (p_bulk.partition is null or p_instance.partition_key = p_bulk.partition)
       and (p_bulk.error_group is null or p_instance.error_group = p_bulk.error_group_id)
       and (p_bulk.error_contains is null or position(lower(p_bulk.error_contains) in lower(p_instance.last_error)) > 0)
       and (p_bulk.since is null or p_instance.inserted_at >= p_bulk.since)
       and (p_bulk.until is null or p_instance.inserted_at < p_bulk.until)
$$;
