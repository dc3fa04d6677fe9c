//! Tests the event log and its projections in every order of the sessions: append × append ×
//! project, project × project, project × rebuild × swap, replay × project × cancel of the run. The
//! module also contains two common designs of a log reader and shows that they lose events.

use super::{
    CLUSTER, Guard,
    acts::{Act, Expected, fill},
    driver::{Driver, End, render, untried_orders},
    gates, schema,
};

/// SQL functions that do around user code what production does. Their table has one row per applied
/// event, so the table shows a repeated event, a gap and a wrong order. A function reads a sum
/// before a gate (an advisory lock of the driver) and writes the sum after the gate: if two
/// sessions write to the same generation concurrently, a part of the sum is lost.
const FIXTURE: &str = "
    create table S.iso_model (n bigint generated always as identity, generation int, position bigint, replayed boolean);
    create table S.iso_sum (generation int primary key, total bigint);
    -- Changes of a run that is finished.
    create table S.iso_late (what text);
    create function S.iso_late() returns trigger language plpgsql as $$
    begin
        if old.finished_at is not null and (new.status, new.position) is distinct from (old.status, old.position) then
            insert into S.iso_late values (old.status || ' at ' || old.position || ', then ' || new.status || ' at ' || new.position);
        end if;
        return null;
    end $$;
    create trigger iso_late after update on S.projection_runs for each row execute function S.iso_late();
    create function S.iso_add(gen int, old_sum bigint, applied bigint) returns void language sql as $$
        insert into S.iso_sum values (gen, old_sum + applied) on conflict (generation) do update set total = excluded.total $$;
    create function S.iso_project(worker uuid) returns text language plpgsql as $$
    declare e record; old bigint; new bigint; gen int; sum bigint;
    begin
        for e in select * from S._project_open('t', 'p', 1, worker, array['e'], 10, 1000000, null, true) loop
            if e.verdict is not null then
                if e.verdict <> 'go' then return e.verdict; end if;
                old := e.scope_position; new := old; gen := e.generation;
                sum := coalesce((select total from S.iso_sum where generation = gen), 0);
            else
                insert into S.iso_model (generation, position, replayed) values (gen, e.pos, false);
                new := e.pos;
            end if;
        end loop;
        if new = old then return 'idle'; end if;
        perform S.iso_gate();
        perform S.iso_add(gen, sum, new - old);
        if not S._project_close('t', 'p', gen, old, new, 0, worker, 0) then
            raise exception 'the cursor has moved' using errcode = 'IS001';
        end if;
        return 'moved';
    end $$;
    create function S.iso_fill(worker uuid, swaps boolean) returns text language plpgsql as $$
    declare e record; old bigint; new bigint; gen int; live bigint; kind text; sum bigint; moved boolean;
    begin
        for e in select * from S._run_open(1, 1, worker, array['e'], 10, 1000000, null, swaps) loop
            if e.verdict is not null then
                if e.verdict <> 'go' then return e.verdict; end if;
                old := e.run_position; new := old; gen := e.run_generation; live := e.scope_position; kind := e.kind;
                sum := coalesce((select total from S.iso_sum where generation = gen), 0);
            else
                insert into S.iso_model (generation, position, replayed) values (gen, e.pos, true);
                new := e.pos;
            end if;
        end loop;
        perform S.iso_gate();
        if new > old then
            perform S.iso_add(gen, sum, new - old);
            ADVANCE into moved;
            if moved is null then raise exception 'the run has moved' using errcode = 'IS001'; end if;
        end if;
        if swaps and kind = 'shadow' and new >= live then
            if not S._run_swap(1, 1) then raise exception 'live has moved' using errcode = 'IS001'; end if;
            return 'swapped';
        end if;
        return 'filled';
    end $$;
    -- The wrong designs: events numbered by a sequence, and a reader that reads by that number.
    create sequence S.iso_seq;
    create table S.iso_log (seq bigint, xid xid8);
    create table S.iso_cursor (at bigint, seen bigint[]);
    create function S.iso_draw() returns text language sql as $$ select set_config('iso.seq', nextval('S.iso_seq')::text, true) $$;
    create function S.iso_write() returns text language plpgsql as $$
    begin
        insert into S.iso_log values (current_setting('iso.seq')::bigint, pg_current_xact_id());
        return '';
    end $$;
    create function S.iso_read(horizon boolean) returns text language plpgsql as $$
    declare found bigint[];
    begin
        found := array(select seq from S.iso_log where seq > (select at from S.iso_cursor)
            and (not horizon or xid < pg_snapshot_xmin(pg_current_snapshot())) order by seq);
        update S.iso_cursor set seen = seen || found, at = coalesce(found[cardinality(found)], at);
        return '';
    end $$;";

/// The statement with which a worker writes the log position of a run at the end of a batch.
const ADVANCE: &str = include_str!("../../../../src/store/sql/run_advance.sql");

const CLEAR: &str = "
    truncate S.events restart identity; delete from S.event_heads; delete from S.event_scans; delete from S.projections;
    delete from S.projection_runs; delete from S.projection_failures; truncate S.iso_model restart identity; delete from S.iso_sum; delete from S.iso_late;
    truncate S.iso_log; delete from S.iso_cursor; insert into S.iso_cursor values (0, '{}'); alter sequence S.iso_seq restart;
    -- Postgres writes the first number that is drawn to its WAL, which assigns an xid to the
    -- transaction; the next numbers need none.
    select nextval('S.iso_seq');";

/// The SQL that inserts three events. The cursor of the scope is behind the first event, so the
/// projection has applied only that event.
const SOME: &str = "
    insert into S.event_heads values ('t');
    insert into S.events (tenant, name, payload, position) select 't', 'e', '1', n from generate_series(1, 3) n;
    insert into S.projections (tenant, projection, version, position) values ('t', 'p', 1, 1);
    insert into S.iso_model (generation, position, replayed) values (1, 1, false); insert into S.iso_sum values (1, 1);";

fn run(kind: &str, generation: i32, target: &str) -> String {
    format!(
        "{SOME} insert into S.projection_runs (id, tenant, projection, kind, status, generation, target, started_at)
         overriding system value values (1, 't', 'p', '{kind}', 'running', {generation}, {target}, S.clock());"
    )
}

fn act(name: &str) -> Act {
    // The last digit of the worker id is the number of the session.
    let worker = "'00000000-0000-0000-0000-00000000000SESSION'::uuid";
    let begin = "select S.iso_gate();";
    let sql = match name {
        "append" => format!(
            "{begin} select * from S._append(array['t', 't'], array['e', 'e'], '{{}}', array['1', '2'], '{{}}', '{{}}', '{{}}', 'wait')"
        ),
        "append, if free" => {
            "select * from S._append(array['t'], array['e'], '{}', array['1'], '{}', '{}', '{}', 'skip')".into()
        }
        "record" => "select S.record('t', 'e', '1')".into(),
        "place" => "select * from S._place_events(array['t'])".into(),
        "project" => format!("{begin} select S.iso_project({worker})"),
        "fill" => format!("{begin} select S.iso_fill({worker}, false)"),
        "swap" | "replay" => format!("{begin} select S.iso_fill({worker}, true)"),
        "cancel" => super::acts::run_cancel(),
        "sequence" => format!("{begin} select S.iso_draw(); select S.iso_gate(); select S.iso_write()"),
        "read by sequence" => "select S.iso_read(false)".into(),
        "read below the horizon" => "select S.iso_read(true)".into(),
        other => panic!("unknown act {other:?}"),
    };
    Act {
        name: name.into(),
        sql,
        expected: Expected::default(),
        strict: false,
    }
}

/// The SQL that assigns log positions to all committed events and projects the events, as the next
/// poll of a worker does.
const QUIET: &str = "
    select * from S._place_events(array['t'], true);
    select S.iso_project('00000000-0000-0000-0000-0000000000ff'::uuid) where exists (select from S.events);
    select S.iso_project('00000000-0000-0000-0000-0000000000ff'::uuid) where exists (select from S.events);";

/// A query for violations of the event log and of the projection. Each row that the query returns
/// is one violation.
const INVARIANTS: &str = "
    select 'the log has a gap or a repeat: ' || array_agg(position order by position)::text from S.events
    having count(*) <> coalesce(max(position), 0) or count(*) <> count(distinct position)
    union all
    select 'has no log position: ' || arrival_no from S.events where position is null
    union all
    select 'the read model has ' || coalesce(seen, '{}')::text || ' of ' || coalesce(logged, '{}')::text
    from (select array_agg(position order by n) seen from S.iso_model
          where generation = S.generation('t', 'p') and not (replayed and exists (select from S.projection_runs where kind = 'replay'))) a,
         (select array_agg(position order by position) logged from S.events) b
    where coalesce(seen, '{}') <> coalesce(logged, '{}')
    union all
    select 'the cursor is at ' || p.position from S.projections p where p.position <> (select count(*) from S.events)
    union all
    select 'replayed twice: ' || position from S.iso_model where replayed group by generation, position having count(*) > 1
    union all
    select 'the run is at ' || r.position || ' and has applied ' || count(m.n) from S.projection_runs r
    left join S.iso_model m on m.generation = r.generation and m.replayed group by r.id having count(m.n) <> r.position
    union all
    select 'the sum is ' || s.total || ', of ' || count(m.n) from S.iso_sum s left join S.iso_model m using (generation)
    group by generation, s.total having count(m.n) <> s.total
    union all
    select 'a finished run changed: ' || what from S.iso_late
    union all
    select 'the generation that is read is marked for deletion' from S.projection_runs r where r.retired = S.generation('t', 'p')";

const LOST: &str = "
    select 'lost: ' || seq from S.iso_log where seq <> all (select unnest(seen) from S.iso_cursor)";

struct Case {
    name: &'static str,
    setup: String,
    acts: &'static [&'static str],
    /// The SQL that the test runs after all acts of the case have ended.
    after: &'static str,
    invariants: &'static str,
    /// Whether the test adds a gate (an advisory lock of the driver) to `_append`, between the
    /// statement that locks the event head of the tenant and the statement that reads the log
    /// position.
    gated: bool,
}

fn case(name: &'static str, setup: String, acts: &'static [&'static str]) -> Case {
    Case {
        name,
        setup,
        acts,
        after: QUIET,
        invariants: INVARIANTS,
        gated: false,
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            gated: true,
            ..case(
                "append × append × project",
                SOME.into(),
                &["append", "append", "project"],
            )
        },
        case(
            "append × record × project",
            SOME.into(),
            &["append", "record", "project"],
        ),
        case(
            "record × append, if free × append",
            SOME.into(),
            &["record", "append, if free", "append"],
        ),
        case(
            "record × place × project",
            SOME.into(),
            &["record", "place", "project"],
        ),
        case(
            "record × record × place",
            String::new(),
            &["record", "record", "place"],
        ),
        case("project × project", SOME.into(), &["project", "project"]),
        case(
            "project × project × append",
            SOME.into(),
            &["project", "project", "append"],
        ),
        case(
            "project × rebuild × swap",
            run("shadow", 2, "3"),
            &["project", "fill", "swap"],
        ),
        case(
            "project × swap × append",
            run("shadow", 2, "3"),
            &["project", "swap", "append"],
        ),
        case(
            "swap × cancel × project",
            run("shadow", 2, "3"),
            &["swap", "cancel", "project"],
        ),
        case(
            "replay × live × cancel",
            run("replay", 1, "1"),
            &["replay", "project", "cancel"],
        ),
        case(
            "append × append × project, the first of a tenant",
            String::new(),
            &["append", "append", "project"],
        ),
        case(
            "replay × replay × live",
            run("replay", 1, "1"),
            &["replay", "replay", "project"],
        ),
    ]
}

/// Plays every order of the sessions of a case, or stops at the first order that has the violation
/// `until`. Removes the guards in `without` from the SQL functions first.
async fn play(case: &Case, without: &[Guard], until: Option<&str>) -> (usize, Vec<String>) {
    let url = CLUSTER.url();
    let (schema, number, client) = schema(&url).await;
    client
        .batch_execute(&render(gates::GATE, &schema))
        .await
        .unwrap();
    let advance = fill(ADVANCE, &["1", "old", "new", "0", "worker", "0", "true"]);
    client
        .batch_execute(&render(&FIXTURE.replace("ADVANCE", &advance), &schema))
        .await
        .unwrap();
    if case.gated {
        let (read, gated) = (
            "return query\n    with log_position",
            "perform iso_gate(); return query with log_position",
        );
        gates::replace(&client, &schema, "_append", read, gated).await;
    }
    for (function, guard, replacement) in without {
        gates::replace(&client, &schema, function, guard, replacement).await;
    }
    let mut driver = Driver::open(&url, &schema, number, 3, true).await;
    let acts: Vec<(Act, End)> = case
        .acts
        .iter()
        .map(|name| (act(name), End::Commit))
        .collect();
    let setup = format!("{CLEAR}{}", case.setup);
    let (mut open, mut count, mut wrong) = (vec![Vec::new()], 0, Vec::new());
    while let Some(choices) = open.pop() {
        if until.is_some_and(|violation| wrong.iter().any(|what: &String| what.contains(violation)))
        {
            break;
        }
        let played = driver.play(&setup, &acts, &choices).await;
        open.extend(untried_orders(choices.len(), &played));
        count += 1;
        let order: Vec<usize> = played.moves.iter().map(|(session, _)| *session).collect();
        let mut say = |what: String| wrong.push(format!("{} {order:?}: {what}", case.name));
        // `IS001` means that the act of another session committed first, so an act may fail with
        // it. Any other error of an act is a violation.
        for (answer, (act, _)) in played.answers.iter().zip(&acts) {
            if let Some(error) = answer
                .error
                .as_ref()
                .filter(|error| !error.starts_with("IS001"))
            {
                say(format!("{} failed: {error}", act.name));
            }
        }
        driver
            .control
            .batch_execute("select pg_advisory_unlock_all()")
            .await
            .unwrap();
        driver
            .control
            .batch_execute(&driver.render(case.after))
            .await
            .unwrap();
        for row in driver
            .control
            .query(&driver.render(case.invariants), &[])
            .await
            .unwrap()
        {
            say(row.get(0));
        }
    }
    (count, wrong)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_event_log_and_its_projections_keep_the_invariants_in_every_interleaving() {
    let mut cases_played = 0;
    for case in cases() {
        let (count, wrong) = play(&case, &[], None).await;
        println!("{}: {count} interleavings", case.name);
        super::assert_nothing_wrong(count, &wrong);
        cases_played += count;
    }
    assert!(cases_played >= 300, "only {cases_played} interleavings");
}

/// The guards (locks and conditions) of the event log. For each: its name, the texts to remove, the
/// case that needs the guard, and the violation that the isolation kit reports without it.
const GUARDS: [(&str, &[Guard], &str, &str); 7] = [
    (
        "the lock that append takes on the head",
        &[(
            "_append",
            "order by h.tenant for no key update);",
            "order by h.tenant);",
        )],
        "append × append × project",
        "append failed: 23505",
    ),
    (
        "the check of the cursor (and the lock that saves work)",
        &[
            ("_project_open", "for no key update skip locked", ""),
            (
                "_project_close",
                "and p.position = p_old and p.generation = p_generation",
                "",
            ),
        ],
        "project × project",
        "the read model has",
    ),
    (
        "the lock of the swap (and its check of the position)",
        &[
            ("_run_open", "for no key update;", ";"),
            ("_run_swap", "and p.position = run.position", ""),
        ],
        "project × rebuild × swap",
        "the read model has",
    ),
    (
        "the lock that stops the live projection during a replay",
        &[("_run_open", "for no key update;", ";")],
        "replay × live × cancel",
        "the sum is",
    ),
    (
        "the lock of the run (and the check of its status) against a cancel of a replay",
        &[
            ("_run_open", "for no key update skip locked;", ";"),
            ("iso_fill", "and r.status = 'running'", ""),
        ],
        "replay × live × cancel",
        "a finished run changed",
    ),
    (
        "the lock of the run (and the check of its position) against a second worker",
        &[
            ("_run_open", "for no key update;", ";"),
            ("_run_open", "for no key update skip locked;", ";"),
            ("iso_fill", "and r.position = old", ""),
        ],
        "replay × replay × live",
        "replayed twice",
    ),
    (
        "the lock of the run (and the checks of its status) against a cancel before the swap",
        &[
            ("_run_open", "for no key update skip locked;", ";"),
            ("iso_fill", "and r.status = 'running'", ""),
            ("_run_swap", "and r.status = 'running'", ""),
        ],
        "swap × cancel × project",
        "a finished run changed",
    ),
];

fn case_named(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_any_one_guard_of_the_event_log_breaks_an_invariant() {
    for (name, guard, which, violation) in GUARDS {
        let (count, wrong) = play(&case_named(which), guard, Some(violation)).await;
        let seen = wrong.iter().filter(|what| what.contains(violation)).count();
        println!("without {name}: interleaving {count} violates an invariant");
        assert!(
            seen > 0,
            "the kit does not detect that {name} is missing: {wrong:?}"
        );
    }
    // The row lock on the scope in `_project_open` only saves work: without this lock, the check of
    // the cursor of the scope is sufficient.
    let unlocked = [("_project_open", "for no key update skip locked", "")];
    let (count, wrong) = play(&case_named("project × project"), &unlocked, None).await;
    super::assert_nothing_wrong(count, &wrong);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_reads_a_log_by_sequence_number_or_below_the_xid_horizon_loses_events() {
    let wrong_designs: [(&str, &'static [&'static str]); 2] = [
        ("by sequence", &["sequence", "sequence", "read by sequence"]),
        (
            "below the xid horizon",
            &["sequence", "sequence", "read below the horizon"],
        ),
    ];
    for (name, acts) in wrong_designs {
        let after = if name == "by sequence" {
            "select S.iso_read(false)"
        } else {
            "select S.iso_read(true)"
        };
        let case = Case {
            name: "a wrong design",
            setup: String::new(),
            acts,
            after,
            invariants: LOST,
            gated: false,
        };
        let (count, wrong) = play(&case, &[], Some("lost: ")).await;
        println!("{name}: interleaving {count} loses an event");
        assert!(
            !wrong.is_empty(),
            "{name}: no event was lost in {count} interleavings"
        );
    }
}
