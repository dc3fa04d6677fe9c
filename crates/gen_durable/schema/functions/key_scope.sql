-- Returns the statuses in which an instance holds its key.
--   called by: _enqueue_keyed      index: none      locks: nothing
create function gen_durable.key_scope(p_scope text) returns gen_durable.durable_status[]
language plpgsql immutable
as $$
begin
    case coalesce(p_scope, 'live')
        when 'live' then return array['runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'awaiting_limit', 'queued', 'stuck']::gen_durable.durable_status[];
        when 'ever' then return enum_range(null::gen_durable.durable_status);
        when 'none' then return '{}'::gen_durable.durable_status[];
        else raise exception 'unknown scope %: a key is held while its instance is live, ever, or none', p_scope
            using errcode = 'invalid_parameter_value';
    end case;
end $$;
