-- Adds two histograms class by class. The sum is one expression, so that Postgres inlines it.
--   called by: _add_rollups
--   index: none
--   locks: nothing
create function gen_durable._add_counts(p_left bigint[], p_right bigint[]) returns bigint[]
    language sql immutable parallel safe
    as 'select array[
        p_left[1] + p_right[1], p_left[2] + p_right[2], p_left[3] + p_right[3], p_left[4] + p_right[4],
        p_left[5] + p_right[5], p_left[6] + p_right[6], p_left[7] + p_right[7], p_left[8] + p_right[8],
        p_left[9] + p_right[9], p_left[10] + p_right[10], p_left[11] + p_right[11], p_left[12] + p_right[12],
        p_left[13] + p_right[13], p_left[14] + p_right[14], p_left[15] + p_right[15], p_left[16] + p_right[16],
        p_left[17] + p_right[17], p_left[18] + p_right[18], p_left[19] + p_right[19], p_left[20] + p_right[20],
        p_left[21] + p_right[21]]';
