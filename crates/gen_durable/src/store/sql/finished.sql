-- called by: store::pulse::finished     index: instances_finished, backwards
-- locks: nothing
-- What has settled of late, by second, machine and end, with how long it took as a class of a histogram: four classes for each
-- doubling of a millisecond. Bounded: a busy second is sampled, never waited for.
select extract(epoch from date_trunc('second', looked.finished_at))::bigint, looked.fsm, looked.status::text,
    floor(4 * ln(greatest(looked.ms, 1)) / ln(2.0::float8))::int, count(*)
from (
    select i.finished_at, i.fsm, i.status, (extract(epoch from i.finished_at - i.inserted_at) * 1000)::float8 as ms
    from gen_durable.instances i
    where i.finished_at >= $1
    order by i.finished_at desc
    limit $2
) looked
group by 1, 2, 3, 4
