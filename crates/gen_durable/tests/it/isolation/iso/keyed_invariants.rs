//! The invariants of lanes and partition keys. The isolation kit checks them after every case: once
//! after placement has run, and a second time after all instances have settled.

use super::{
    acts::Act,
    driver::{Answer, Driver, End},
    setups::Setup,
};

/// The SQL that creates two things in the schema: a trigger that records a step that starts out of
/// order or at the same time as another step, and the function `iso_drain`, which runs all
/// instances until they have settled, as a worker does.
pub(super) const WITNESSES: &str = "
    create function S.iso_started() returns trigger language plpgsql as $$
    begin
        insert into S.iso_audit (what, id)
        select 'overtook ' || i.id, new.id from S.instances i
        where i.tenant = new.tenant and i.lane_key = new.lane_key and i.in_lane and i.lane_position < new.lane_position
        union all
        select 'ran concurrently with ' || i.id, new.id from S.instances i
        where i.tenant = new.tenant and i.id <> new.id and i.locked_by is not null
          and (i.lane_key = new.lane_key or i.partition_key = new.partition_key);
        return null;
    end $$;
    create trigger iso_started after update on S.instances for each row
        when (new.status = 'executing' and old.status <> 'executing') execute function S.iso_started();

    create function S.iso_drain() returns int language plpgsql as $$
    declare
        one record;
        rounds int := 0;
    begin
        loop
            -- Release the cancelled instances, as if their steps had ended.
            perform S._release(array(select i.id from S.instances i where i.status = 'cancelled' and i.locked_by is not null));
            perform S._place(0, 1000);
            for one in select i.id from S.instances i where i.status = 'awaiting_signal' loop
                perform S.signal(one.id, null, null, null, 'a', '1');
            end loop;
            update S.instances i set eligible_at = S.clock() where i.status = 'runnable' and i.eligible_at > S.clock();
            perform from S._pick(array['default'], array[10], array['default', 'default'], array[-1, 0]::smallint[],
                array['-infinity', '-infinity']::timestamptz[], array[0, 0]::bigint[], array['m/1'],
                '00000000-0000-0000-0000-00000000000b', 60, 1);
            for one in
                select i.id, i.claim_epoch, i.step_seq from S.instances i where i.status = 'executing'
                order by 1
            loop
                perform from S._write_keyed_step_results(array[one.id], array[one.claim_epoch], array[one.step_seq], array['done'], '{}', '{}',
                    '{}', '{}', array['1'], '{}', '{}', '{}', null, array[one.id],
                    '00000000-0000-0000-0000-00000000000b', 60, array['m/1']);
            end loop;
            rounds := rounds + 1;
            exit when rounds > 12 or not exists (
                select from S.instances i where i.settled_at is null and not exists (
                    select from S.instances b where b.lane_key = i.lane_key and b.in_lane and b.status = 'failed'));
        end loop;
        return rounds;
    end $$;";

/// A query for violations that the isolation kit runs after placement.
const PLACED: &str = "
    select 'still has a number for placement: ' || id from S.instances where arrival_no is not null
    union all
    select 'is queued and has no lane position: ' || id from S.instances where status = 'queued' and not in_lane
    union all
    select 'the lane has no head that can run, its first instance: ' || head.id from (
        select distinct on (tenant, lane_key) id, status, tenant, lane_key from S.instances
        where in_lane order by tenant, lane_key, lane_position) head
    where head.status = 'queued'
    union all
    select 'waits for a partition that has no holder: ' || w.id from S.instances w
    where w.partition_waiting and not exists (
        select from S.instances h where h.tenant = w.tenant and h.partition_key = w.partition_key and not h.partition_waiting
          and (h.status in ('runnable', 'executing', 'awaiting_limit') or h.locked_by is not null))
    union all
    select 'is due and waits for a partition holder that is not due: ' || w.id from S.instances w
    join S.instances h on h.tenant = w.tenant and h.partition_key = w.partition_key and not h.partition_waiting and h.status = 'runnable'
    where w.partition_waiting and w.eligible_at <= S.clock() and h.eligible_at > S.clock()
    union all
    select 'has a lane key and is neither settled nor in the lane: ' || id from S.instances
    where lane_key is not null and settled_at is null and not in_lane
    union all
    select 'is settled and still in the lane: ' || id from S.instances
    where in_lane and settled_at is not null and not (status = 'failed' and lane_blocks)
      and not (status = 'cancelled' and locked_by is not null)
    union all
    select 'is in a lane without a row in lanes, or at or below the lane floor: ' || i.id from S.instances i
    where i.in_lane and not exists (
        select from S.lanes l where l.tenant = i.tenant and l.key = i.lane_key and l.floor < i.lane_position)
    union all
    select 'is placed before an earlier enqueue: ' || later.id from S.instances later join S.instances sooner
        on sooner.lane_key = later.lane_key and sooner.id < later.id and sooner.lane_position > later.lane_position
    where sooner.id <> 10 and (sooner.id < 1000 or sooner.state->>'of' = later.state->>'of')
    union all
    ";

/// A query for violations that the isolation kit runs twice: after placement, and after `iso_drain`
/// has run all instances.
const ALWAYS: &str = "
    select 'two instances of one lane are not queued: ' || lane_key from S.instances where in_lane and status <> 'queued'
    group by tenant, lane_key having count(*) > 1
    union all
    select 'is not queued although a lower lane position exists: ' || i.id from S.instances i join S.instances b
        on b.tenant = i.tenant and b.lane_key = i.lane_key and b.in_lane and b.lane_position < i.lane_position
    where i.in_lane and i.status <> 'queued'
    union all
    select what || ': ' || id from S.iso_audit where what like 'overtook%' or what like 'ran concurrently with%'
    union all
    select 'claim_epoch decreased: ' || id from S.iso_audit where what = 'change' and new_epoch < old_epoch
    union all
    select 'left executing with an unchanged claim_epoch: ' || id from S.iso_audit
    where what = 'change' and old_status = 'executing' and new_status <> 'executing' and new_epoch = old_epoch
    union all
    select 'step_seq decreased or skipped a number: ' || id from S.iso_audit
    where what = 'change' and new_seq not in (old_seq, old_seq + 1)";

/// A query for violations that the isolation kit runs after `iso_drain` has run all instances.
const DRAINED: &str = "
    union all
    select 'never settled: ' || i.id || ' ' || i.status from S.instances i
    where i.settled_at is null and i.status <> 'stuck' and not exists (
        select from S.instances b where b.lane_key = i.lane_key and b.in_lane and b.status in ('failed', 'stuck'))
    union all
    select 'still has a number for placement after the drain: ' || id from S.instances where arrival_no is not null";

async fn ask(driver: &Driver, text: &str) -> Vec<String> {
    let rows = driver
        .control
        .query(&driver.render(text), &[])
        .await
        .unwrap();
    rows.iter()
        .map(|row| row.get::<_, Option<String>>(0).unwrap_or_default())
        .collect()
}

/// The index of the column `marks` in the rows that the SQL functions return for claims.
const MARKS: usize = 24;

/// Returns the violations of the invariants of lanes and partition keys after a case.
pub(super) async fn violations(
    driver: &Driver,
    setup: &Setup,
    acts: &[(Act, End)],
    answers: &[Answer],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut claimed, mut acknowledged) = (Vec::new(), 0);
    for ((act, end), answer) in acts.iter().zip(answers) {
        let errors = answer
            .error
            .iter()
            .filter(|_| !matches!(end, End::Killed(_)))
            .filter(|error| !act.may_be_refused(error));
        wrong.extend(errors.map(|error| format!("{} failed: {error}", act.name)));
        if !answer.committed {
            continue;
        }
        // A row that an act returns for a claim has more than 20 columns and a `claim_epoch`. A
        // long row without a `claim_epoch` lists the written step results in its column `marks`.
        let claims = answer
            .rows
            .iter()
            .filter(|row| row.len() > 20 && row[7].is_some());
        claimed.extend(claims.map(|row| (row[0].clone(), row[7].clone())));
        let written = answer.rows.iter().any(|row| match row.as_slice() {
            [id, ..] if row.len() < 20 => id.as_deref() == Some("10"),
            long => long
                .get(MARKS)
                .is_some_and(|marks| marks.as_deref() == Some("{10}")),
        });
        acknowledged += usize::from(act.expected.commits && written);
    }
    let count = claimed.len();
    claimed.sort();
    claimed.dedup();
    if claimed.len() != count {
        wrong.push("one claim was returned to two sessions".into());
    }
    let others = |(act, _): &(Act, End)| act.expected.expires || act.name == "retry 10";
    if !acts.iter().any(others) {
        let committed = format!(
            "select '10 has ' || sum(new_seq - old_seq) || ' commits, and {acknowledged} were acknowledged' from S.iso_audit
             where what = 'change' and id = 10 having coalesce(sum(new_seq - old_seq), 0) <> {acknowledged}"
        );
        wrong.extend(ask(driver, &committed).await);
    }
    // No case may need a repair by upkeep, unless the lane of the setup has no head or the
    // partition key has no holder.
    if setup.name.contains("without") {
        ask(driver, "select S._repair('', '', '', '', 100)::text").await;
    }
    ask(
        driver,
        "select S._place(0, 1000)::text from generate_series(1, 2)",
    )
    .await;
    wrong.extend(ask(driver, &format!("{PLACED}{ALWAYS}")).await);
    ask(driver, "select S.iso_drain()::text").await;
    wrong.extend(ask(driver, &format!("{ALWAYS}{DRAINED}")).await);
    wrong
}
