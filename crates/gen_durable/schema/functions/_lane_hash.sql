-- Returns a number that stands for the name of a lane in indexes.
--   called by: the generated column instances._lane_hash, every scan of a lane
--   index: none      locks: nothing
create function gen_durable._lane_hash(p_tenant text, p_key text) returns bigint
    language sql immutable parallel safe
    as 'select hashtextextended(p_key, hashtextextended(p_tenant, 0))';
