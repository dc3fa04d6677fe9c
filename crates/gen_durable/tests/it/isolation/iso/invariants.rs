//! The invariants that hold after every case, in every order of the sessions. Each invariant is a
//! SQL query, and each row that the query returns is one violation.

use super::{
    acts::Act,
    driver::{Answer, Driver, End},
};

/// The SQL that creates triggers. The triggers record every committed change of an instance, and
/// the status of the target instance when a session inserts a signal.
pub(super) const WITNESSES: &str = "
    create table S.iso_audit (
        n bigint generated always as identity, what text, id bigint, old_status text, new_status text,
        old_epoch bigint, new_epoch bigint, old_seq bigint, new_seq bigint, generation int);
    create function S.iso_changed() returns trigger language plpgsql as $$
    begin
        insert into S.iso_audit (what, id, old_status, new_status, old_epoch, new_epoch, old_seq, new_seq, generation)
        values ('change', old.id, old.status, new.status, old.claim_epoch, new.claim_epoch, old.step_seq, new.step_seq,
            new.join_generation);
        return null;
    end $$;
    create trigger iso_changed after update on S.instances for each row execute function S.iso_changed();
    create function S.iso_signalled() returns trigger language plpgsql as $$
    begin
        insert into S.iso_audit (what, id, new_status)
        select 'signal', i.id, i.status from S.instances i where i.id = new.target_id;
        return null;
    end $$;
    create trigger iso_signalled after insert on S.signals for each row execute function S.iso_signalled();";

/// A query for violations that does not depend on the acts of the case. `SEEN` stands for the ids
/// of the signals that a step had read before it began to wait.
const STATE: &str = "
    select 'waits although an awaited signal is in its inbox: ' || i.id from S.instances i
    where i.status = 'awaiting_signal' and exists (
        select from S.signals s where s.target_id = i.id and s.consumed_at is null and s.name = any (i.awaits)
          and s.id <> all (SEEN))
    union all
    select 'children_pending is ' || p.children_pending || ', and ' || live.count || ' children are live: ' || p.id
    from S.instances p cross join lateral (
        select count(*) from S.instances c
        where c.parent_id = p.id and c.parent_generation = p.join_generation and c.settled_at is null) live
    where p.children_pending <> live.count
    union all
    select 'waits for children and has none pending: ' || id from S.instances
    where status = 'awaiting_children' and children_pending = 0
    union all
    select 'is awaiting_signal and awaits no name: ' || id from S.instances where status = 'awaiting_signal' and awaits is null
    union all
    select 'has a deadline and does not wait: ' || id from S.instances
    where deadline_at is not null and status not in ('awaiting_signal', 'awaiting_children')
    union all
    select 'claim_epoch decreased: ' || id from S.iso_audit where what = 'change' and new_epoch < old_epoch
    union all
    select 'left executing with an unchanged claim_epoch: ' || id from S.iso_audit
    where what = 'change' and old_status = 'executing' and new_status <> 'executing' and new_epoch = old_epoch
    union all
    select 'step_seq decreased or skipped a number: ' || id from S.iso_audit
    where what = 'change' and new_seq not in (old_seq, old_seq + 1)
    union all
    select 'left a settled status: ' || id from S.iso_audit
    where what = 'change' and old_status in ('done', 'failed', 'cancelled') and new_status <> old_status
    union all
    select 'settled twice: ' || id from S.iso_audit
    where what = 'change' and new_status in ('done', 'failed', 'cancelled') and new_status <> old_status
    group by id having count(*) > 1
    union all
    select 'one join was woken twice: ' || id from S.iso_audit
    where what = 'change' and old_status = 'awaiting_children' and new_status = 'runnable'
    group by id, generation having count(*) > 1
    union all
    select 'a signal was put into the inbox of a settled instance: ' || id from S.iso_audit
    where what = 'signal' and new_status in ('done', 'failed', 'cancelled')
    union all
    select 'two signals have one dedup key: ' || target_id from S.signals where dedup_key is not null
    group by target_id, dedup_key having count(*) > 1
    union all
    select 'a repeating timer is pending after its wait ended: ' || t.id from S.timers t
    where t.state = 'pending' and t.instance_id is not null and not exists (
        select from S.instances i where i.id = t.instance_id and i.step_seq = t.await_seq
          and i.status in ('awaiting_signal', 'awaiting_children'))
    union all
    select 'fired before its due time: ' || id from S.timers where state = 'fired' and ended_at < due_at
    union all
    select 'timers started ' || fired.count || ' instances, and there are ' || made.count
    from (select count(*) from S.timers where state = 'fired') fired,
         (select count(*) from S.instances where machine = 'reminder') made
    where fired.count <> made.count
    union all
    select 'fired and started no instance: ' || t.id from S.timers t
    where t.state = 'fired' and not exists (select from S.instances i where i.id = t.started_id)
    union all
    select 'a schedule that ' || case when s.paused_at is null then 'runs' else 'is paused' end || ' has ' || ahead.count || ' pending timers'
    from S.schedules s cross join lateral (
        select count(*) from S.timers t where t.schedule = s.name and t.state = 'pending' and not t.manual) ahead
    where ahead.count <> (s.paused_at is null)::int
    union all
    select 'a pending timer has an outdated cycle: ' || t.id from S.timers t join S.schedules s on s.name = t.schedule
    where t.state = 'pending' and not t.manual and t.cycle <> s.cycle
    union all
    select 'a signal has no target row: ' || s.id from S.signals s
    where not exists (select from S.instances i where i.id = s.target_id)
    union all
    select 'a history row has no instance: ' || t.instance_id from S.history t
    where not exists (select from S.instances i where i.id = t.instance_id)
    union all
    select 'is in the history and was not committed: ' || t.outcome || ' of ' || t.instance_id from S.history t
    where not exists (
        select from S.iso_audit a where a.what = 'change' and a.id = t.instance_id
          and a.new_seq = t.step_seq and a.new_epoch = t.claim_epoch and a.new_status = t.status::text)
    union all
    select 'was committed and is not in the history: ' || a.old_status || ' to ' || a.new_status || ' of ' || a.id from S.iso_audit a
    where a.what = 'change' and a.old_status not in ('awaiting_signal', 'awaiting_children')
      and (a.new_seq > a.old_seq or a.old_status <> a.new_status and a.new_status in ('done', 'failed', 'cancelled'))
      and exists (select from S.instances i where i.id = a.id)
      and not exists (select from S.history t
        where t.instance_id = a.id and t.step_seq = a.new_seq and t.claim_epoch = a.new_epoch)
    union all
    select 'was cancelled and the history has no cancel: ' || a.id from S.iso_audit a
    where a.what = 'change' and a.new_status = 'cancelled' and a.old_status <> a.new_status
      and exists (select from S.instances i where i.id = a.id)
      and not exists (select from S.history t where t.instance_id = a.id and t.outcome = 'cancel')";

/// Returns the violations of the invariants after a case.
pub(super) async fn violations(
    driver: &Driver,
    acts: &[(Act, End)],
    answers: &[Answer],
    had_signals: bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen: Vec<i64> = Vec::new();
    // The ids of instances with acknowledged commits, of instances that an act ended at their
    // deadline (which needs no claim), and of claimed instances.
    let (mut commits, mut swept, mut claimed) = (Vec::new(), Vec::new(), Vec::new());
    let mut queries = Vec::new();
    let mut consumed = false;
    for (session, ((act, end), answer)) in acts.iter().zip(answers).enumerate() {
        // An error of an act is a violation, unless the act may fail with this error or the driver
        // kills the backend of the act.
        wrong.extend(
            answer
                .error
                .iter()
                .filter(|_| !matches!(end, End::Killed(_)))
                .filter(|error| !act.may_be_refused(error))
                .map(|error| format!("{} failed: {error}", act.name)),
        );
        let ids: Vec<i64> = answer
            .rows
            .iter()
            .filter_map(|row| row[0].as_deref()?.parse().ok())
            .collect();
        let said = answer
            .rows
            .first()
            .and_then(|row| row[0].clone())
            .unwrap_or_default();
        let done = answer.committed;
        let expected = &act.expected;
        let acknowledged = done && expected.commits && !ids.is_empty();
        if done && expected.commits {
            commits.extend(ids.iter().copied());
        }
        if acknowledged {
            seen.extend(expected.seen);
            consumed |= !expected.consumes.is_empty();
        }
        if done && expected.expires {
            swept.extend(ids.iter().copied());
        }
        if done && expected.claims_rows {
            claimed.extend(
                answer
                    .rows
                    .iter()
                    .filter(|row| row[0].is_some())
                    .map(|row| (row[0].clone(), row[7].clone())),
            );
        }
        if let (true, Some(id)) = (done, expected.timer) {
            let state = answer
                .rows
                .first()
                .and_then(|row| row.get(1).cloned().flatten())
                .unwrap_or_else(|| said.clone());
            if matches!(state.as_str(), "fired" | "cancelled") {
                queries.push(format!(
                    "select 'a timer was reported as {state} and is ' || state from S.timers where id = {id} and state <> '{state}'"
                ));
            }
        }
        let children = if acknowledged { expected.children } else { 0 };
        queries.push(format!(
            "select 'session {session} made ' || count(*) || ' children, not {children}' from S.instances
             where machine = 'child of {session}' having count(*) <> {children}"
        ));
        if expected.sends {
            let delivered = i32::from(done && said == "delivered");
            queries.push(format!(
                "select 'session {session} got the answer {said:?}, and there are ' || count(*) || ' signals of it' from S.signals
                 where payload = '\"of {session}\"' having count(*) <> {delivered}
                   and not (count(*) = 0 and not exists (select from S.instances where id = 10))"
            ));
        }
        if expected.sends_all || expected.signals_sent > 0 {
            let said = answer.rows.iter().filter(|row| {
                row.get(1)
                    .is_some_and(|word| word.as_deref() == Some("delivered"))
            });
            let delivered = match expected.sends_all {
                true => {
                    if done {
                        said.count()
                    } else {
                        0
                    }
                }
                false => {
                    if acknowledged {
                        expected.signals_sent
                    } else {
                        0
                    }
                }
            };
            let fewer = if expected.once {
                "and count(*) <> 0"
            } else {
                ""
            };
            queries.push(format!(
                "select 'session {session} sent {delivered} signals, and there are ' || count(*) from S.signals
                 where payload = '\"of {session}\"' having count(*) <> {delivered} {fewer}
                   and not (count(*) = 0 and not exists (select from S.instances where id = 10))"
            ));
        }
        if let (true, "cancelled", Some(id)) = (done, said.as_str(), expected.ends) {
            queries.push(format!(
                "select 'was reported as cancelled and is not settled: ' || id from S.instances where id = {id} and settled_at is null"
            ));
            if expected.ends_below {
                queries.push(format!(
                    "select * from (with recursive below(id) as (select {id}::bigint union all
                        select c.id from below join S.instances c on c.parent_id = below.id)
                     select 'was cancelled with its ancestors and is not settled: ' || i.id from S.instances i join below using (id)
                     where i.settled_at is null) lives"
                ));
            }
        }
    }
    let twice = claimed.len();
    claimed.sort();
    claimed.dedup();
    if claimed.len() != twice {
        wrong.push("two picks returned the same claim".into());
    }
    if had_signals {
        // The setup has two signals: the act has consumed either both or none. The row of the
        // signal with a dedup key must still exist.
        let left = if consumed { 0 } else { 2 };
        queries.push(format!(
            "select 'unconsumed signals of the two in the setup: ' || count(*) || ', not {left}' from S.signals
             where id in (100, 101) and consumed_at is null having count(*) <> {left}"
        ));
        queries
            .push("select 'the row of the dedup key is gone' where not exists (select from S.signals where id = 101)".into());
    }
    // Each acknowledged act with the answer that its instance is new has inserted one instance with
    // the key `k`, and there are no other new instances with that key.
    let started = acts.iter().zip(answers).filter(|((act, _), answer)| {
        answer.committed
            && ["start k", "start k once", "enqueue k"].contains(&act.name.as_str())
            && answer
                .rows
                .first()
                .is_some_and(|row| row.get(2).is_some_and(|new| new.as_deref() == Some("t")))
    });
    queries.push(format!(
        "select 'there are ' || count(*) || ' new instances with the key, not {0}' from S.instances
         where id > 1000 and key = 'k' having count(*) <> {0}",
        started.count()
    ));
    let list = |ids: &[i64]| ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    queries.push(format!(
        "select 'an instance has ' || committed || ' commits, and ' || acknowledged || ' were acknowledged: ' || id
         from (select id, sum(new_seq - old_seq) as committed from S.iso_audit where what = 'change' group by id) c
         full join (select id, count(*) as acknowledged from unnest('{{{}}}'::bigint[]) as a(id) group by id) a using (id)
         where coalesce(committed, 0) <> coalesce(acknowledged, 0)",
        list(&[commits.clone(), swept].concat())
    ));
    queries.push(format!(
        "select 'a commit was acknowledged after its claim was lost: ' || a.id
         from unnest('{{{}}}'::bigint[]) as a(id)
         where not exists (select from S.iso_audit c where c.what = 'change' and c.id = a.id and c.old_epoch = 5
             and c.old_seq = 3 and c.new_seq = 4 and c.old_status = 'executing')",
        list(&commits)
    ));
    let text = format!("{STATE} union all {}", queries.join(" union all "));
    let text = text.replace("SEEN", &format!("'{{{}}}'::bigint[]", list(&seen)));
    let rows = driver
        .control
        .query(&driver.render(&text), &[])
        .await
        .unwrap();
    wrong.extend(
        rows.iter()
            .map(|row| row.get::<_, Option<String>>(0).unwrap_or_default()),
    );
    wrong
}
