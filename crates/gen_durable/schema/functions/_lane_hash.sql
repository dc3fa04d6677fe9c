-- Returns the hash of a lane's tenant and key, which indexes contain in place of the names.
--   called by: the generated column instances.lane_hash, every scan of a lane
--   index: none      locks: nothing
create function gen_durable._lane_hash(p_tenant text, p_key text) returns bigint
    language sql immutable parallel safe
    as 'select hashtextextended(p_key, hashtextextended(p_tenant, 0))';
