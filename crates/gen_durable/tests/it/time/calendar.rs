//! Tests dates, periods, cycles and cron lines against the date arithmetic of Postgres, in time
//! zones of all continents.

use gen_durable::{
    DAY, HOUR,
    schedule::{Cycle, Due, MisfirePolicy, Period, Timestamp},
};

use crate::support::sql;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn next(cycle: &str, now: &str, count: usize) -> Vec<String> {
    let cycle: Cycle = cycle
        .parse()
        .unwrap_or_else(|error| panic!("{cycle}: {error}"));
    cycle
        .upcoming(at(now), count)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn the_occurrences_of_cycles_in_the_table_of_the_guide_are_correct() {
    for (cycle, now, expected) in [
        (
            "R/PT10M",
            "2026-01-05T08:00:00Z",
            ["2026-01-05T08:10:00Z", "2026-01-05T08:20:00Z"],
        ),
        // In a month without a 31st the occurrence is on the last day, and in the next month it is
        // on the 31st again.
        (
            "R/2026-01-31T09:00:00Z/P1M",
            "2026-01-31T09:00:00Z",
            ["2026-02-28T09:00:00Z", "2026-03-31T09:00:00Z"],
        ),
        (
            "R/2024-02-29T00:00:00Z/P1Y",
            "2026-12-01T00:00:00Z",
            ["2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"],
        ),
        // Summer time begins between these occurrences. Each occurrence stays at eight o'clock
        // local time, so 23 hours lie between two of them.
        (
            "R/2026-03-28T08:00:00[Europe/Madrid]/P1D",
            "2026-03-28T00:00:00Z",
            ["2026-03-28T07:00:00Z", "2026-03-29T06:00:00Z"],
        ),
        (
            "R/2026-03-28T08:00:00[Europe/Madrid]/PT24H",
            "2026-03-28T08:00:00Z",
            ["2026-03-29T07:00:00Z", "2026-03-30T07:00:00Z"],
        ),
        // The local time 02:30 does not exist on the day on which summer time begins: the
        // occurrence of that day is at 03:30, and the occurrence of the next day is at 02:30 again.
        (
            "R/2026-03-28T02:30:00[Europe/Madrid]/P1D",
            "2026-03-28T12:00:00Z",
            ["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        ),
        // The local time 02:30 exists twice on the day on which summer time ends: the occurrence is
        // at the first of the two moments.
        (
            "R/2026-10-24T02:30:00[Europe/Madrid]/P1D",
            "2026-10-24T12:00:00Z",
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        // A cron line for one time of day fires at the end of the gap if that local time does not
        // exist, and once if that local time exists twice.
        (
            "30 2 * * * [Europe/Madrid]",
            "2026-03-28T12:00:00Z",
            ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
        ),
        (
            "30 2 * * * [Europe/Madrid]",
            "2026-10-24T12:00:00Z",
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        // A cron line for every hour fires after each elapsed hour, also when the clocks change: no
        // hour is skipped and none occurs twice.
        (
            "0 * * * * [Europe/Madrid]",
            "2026-03-29T00:30:00Z",
            ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"],
        ),
        (
            "0 * * * * [Europe/Madrid]",
            "2026-10-25T00:30:00Z",
            ["2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"],
        ),
    ] {
        assert_eq!(next(cycle, now, 2), expected, "{cycle} from {now}");
    }
}

#[test]
fn a_cycle_ends_after_its_last_occurrence_and_has_one_for_a_day_that_its_zone_skipped() {
    assert_eq!(next("R3/PT1H", "2026-01-01T00:00:00Z", 9).len(), 3);
    assert_eq!(
        Cycle::every(DAY)
            .times(2)
            .upcoming(at("2026-01-01T00:00:00Z"), 9)
            .len(),
        2
    );
    assert_eq!(next("R2/0 0 * * *", "2026-01-01T00:00:00Z", 9).len(), 2);
    // Samoa skipped December 30, 2011. The occurrence of that day moves to December 31, where it
    // and the occurrence of December 31 count as one.
    let samoa = next(
        "R/2011-12-28T10:00:00[Pacific/Apia]/P1D",
        "2011-12-28T20:00:00Z",
        4,
    );
    assert_eq!(
        samoa,
        [
            "2011-12-28T20:00:00Z",
            "2011-12-29T20:00:00Z",
            "2011-12-30T20:00:00Z",
            "2011-12-31T20:00:00Z"
        ]
        .map(str::to_owned)
        .into_iter()
        .skip(1)
        .chain(["2012-01-01T20:00:00Z".to_owned()])
        .collect::<Vec<_>>()
    );
}

#[test]
fn an_invalid_cycle_is_refused_with_a_reason_and_an_example() {
    for (text, reason, example) in [
        ("R/PT0S", "too short", "PT0.001S"),
        ("R/-P1D", "is not a cycle", "R3/PT10M"),
        ("R0/PT1H", "0 occurrences", "R1"),
        ("R/P1X", "is not an ISO 8601 period", "PT10M"),
        ("RX/PT1H", "is not a number of times", "R3/PT10M"),
        (
            "R/2026-01-05T08:00:00/P1W",
            "has no time zone",
            "[Europe/Madrid]",
        ),
        (
            "R/2026-01-05T08:00:00[Europe/Atlantis]/P1W",
            "there is no time zone",
            "Europe/Madrid",
        ),
        (
            "R/2026-01-05T08:00:00+05:00[Europe/Madrid]/P1W",
            "has another offset than +05 at that time",
            "..+01:00",
        ),
        (
            "R/P1W/2026-01-05T08:00:00Z",
            "the start must be before the period",
            "R3/PT10M",
        ),
        (
            "R/2026-02-30T08:00:00Z/P1W",
            "is not a date",
            "2026-01-05T08:00:00",
        ),
        ("61 * * * *", "is not a cron line", "30 2 * * MON-FRI"),
        ("0 0 30 2 *", "never occurs", "30 2 * * MON-FRI"),
        ("0 0 * *", "is not a cron line", "30 2 * * MON-FRI"),
        ("every tuesday", "is not a cron line", "30 2 * * MON-FRI"),
        ("", "is not a cron line", "30 2 * * MON-FRI"),
        (
            "0 0 * * * [Nowhere]",
            "there is no time zone",
            "Europe/Madrid",
        ),
        ("\0", "is not a cron line", "30 2 * * MON-FRI"),
    ] {
        let error = text.parse::<Cycle>().unwrap_err();
        assert!(error.is_invalid(), "{text}");
        let said = error.to_string();
        assert!(
            said.contains(reason) && said.contains(example),
            "{text}: {said}"
        );
    }
    assert!(
        Cycle::cron("0 0 * * *", "Mars/Olympus")
            .unwrap_err()
            .to_string()
            .contains("there is no time zone")
    );
    assert!(
        Period::iso("P1D")
            .unwrap()
            .time_zone("Mars/Olympus")
            .is_err()
    );
    assert!(
        Due::iso("2026-01-05T08:00:00")
            .unwrap_err()
            .to_string()
            .contains("time zone")
    );
    assert!(Due::iso("tomorrow").is_err() && Due::iso("P").is_err() && Due::iso("PT").is_err());
}

#[test]
fn a_cycle_formatted_as_text_parses_to_the_same_cycle() {
    for text in [
        "R/PT10M",
        "R3/PT10M",
        "R/P1D[Europe/Madrid]",
        "R/P1Y2M3DT4H5M6.5S",
        "R5/2026-01-05T08:00:00[Europe/Madrid]/P1W",
        "R/2026-01-05T08:00:00Z/P1W",
        "R/2026-01-05T08:00:00+05:30/P1D",
        "30 2 * * MON-FRI [America/New_York]",
        "R4/30 2 * * * [America/New_York]",
        "*/10 * * * * *",
        "@daily",
    ] {
        let cycle: Cycle = text.parse().unwrap();
        let again: Cycle = cycle.to_string().parse().unwrap();
        assert_eq!(cycle, again, "{text} was written as {cycle}");
        assert_eq!(
            cycle.upcoming(at("2026-01-01T00:00:00Z"), 20),
            again.upcoming(at("2026-01-01T00:00:00Z"), 20)
        );
    }
    assert_eq!(Cycle::every(90 * HOUR).to_string(), "R/PT324000S");
    assert_eq!(
        [
            MisfirePolicy::All,
            MisfirePolicy::Latest,
            MisfirePolicy::Skip
        ]
        .map(|missed| missed.name().parse::<MisfirePolicy>())
        .into_iter()
        .flatten()
        .count(),
        3
    );
}

/// Time zones of all continents: zones with offsets of half and quarter hours, zones without summer
/// time, a zone with a shift of two hours, zones at the date line, and zones that changed their
/// rules.
const ZONES: [&str; 24] = [
    "UTC",
    "Europe/Madrid",
    "Europe/London",
    "Europe/Dublin",
    "Europe/Moscow",
    "Europe/Istanbul",
    "America/New_York",
    "America/St_Johns",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "America/Caracas",
    "America/Havana",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Tehran",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Pyongyang",
    "Asia/Gaza",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Antarctica/Troll",
];

/// Returns whether `DURABLE_CALENDAR_ALL=1` is set, which makes the tests check all time zones and
/// more occurrences.
fn all() -> bool {
    std::env::var_os("DURABLE_CALENDAR_ALL").is_some()
}

/// A query with which Postgres computes occurrence k as the local time of the anchor plus k
/// periods. If a local time exists twice, Postgres returns the later moment and this crate the
/// earlier one, so the query searches for the earliest moment with that local time.
const ORACLE: &str = "
    select coalesce(
        (select min(c) from (select t - i * interval '10 minutes' as c from generate_series(0, 18) i) earlier
         where c at time zone $1 = local),
        t) + k * $4::text::interval
    from (select k, local, local at time zone $1 as t
          from (select k, $2::timestamp + k * $3::text::interval as local from generate_series(0, $5::int - 1) k) steps) there
    order by k";

#[tokio::test]
async fn occurrences_of_periods_equal_postgres_date_arithmetic_in_many_zones_from_1970_to_2037() {
    let client = sql().await;
    let mut compared = 0;
    // The test checks half of the time zones, or all of them if `DURABLE_CALENDAR_ALL=1` is set.
    for zone in ZONES
        .into_iter()
        .skip(usize::from(!all()))
        .step_by(if all() { 1 } else { 2 })
    {
        for (start, calendar, time, count) in [
            // These cycles occur every night at 02:30 and at 00:30, across every clock change since
            // 1970.
            ("1970-01-01T02:30:00", "P1D", "PT0S", 24_800_i32),
            (
                "1970-01-01T00:30:00",
                "P1D",
                "PT0S",
                if all() { 24_800 } else { 400 },
            ),
            ("1970-01-31T02:00:00", "P1M", "PT0S", 816),
            ("1972-02-29T12:00:00", "P1Y", "PT0S", 65),
            ("1970-01-05T08:00:00", "P2W", "PT0S", 1_770),
            ("1970-01-31T03:00:00", "P1M", "PT12H", 700),
            ("1970-06-30T01:15:00", "P0D", "PT13H7M", 2_000),
        ] {
            let rows = client
                .query(
                    ORACLE,
                    &[&zone, &jiff_civil(start), &calendar, &time, &count],
                )
                .await
                .unwrap();
            let expected: Vec<Timestamp> = rows.iter().map(|row| row.get(0)).collect();
            let period = match (calendar, time) {
                ("P0D", time) => time.to_owned(),
                (calendar, "PT0S") => calendar.to_owned(),
                (calendar, time) => format!("{calendar}{}", time.trim_start_matches('P')),
            };
            let cycle: Cycle = format!("R/{start}[{zone}]/{period}").parse().unwrap();
            // If the zone skipped a day, two occurrences are at the same moment and count as one.
            let mut expected = expected;
            expected.dedup();
            let now = expected[0];
            let found = cycle.upcoming(now, expected.len() - 1);
            for (found, expected) in found.iter().zip(&expected[1..]) {
                assert_eq!(found, expected, "{cycle}");
            }
            compared += found.len();
        }
    }
    assert!(compared > 300_000, "only {compared} were compared");
}

fn jiff_civil(text: &str) -> jiff::civil::DateTime {
    text.parse().unwrap()
}

#[tokio::test]
async fn a_daily_cron_line_matches_postgres_on_days_where_its_local_time_exists_once() {
    let client = sql().await;
    for zone in ZONES.into_iter().step_by(if all() { 1 } else { 4 }) {
        let rows = client
            .query(
                "select t from (select d, (d + time '02:30') at time zone $1 as t
                     from generate_series(timestamp '1990-01-01', '2036-12-31', interval '1 day') d) days
                 where t at time zone $1 = d + time '02:30'
                   and not exists (select from generate_series(1, 18) i
                                   where (t - i * interval '10 minutes') at time zone $1 = d + time '02:30')
                 order by t",
                &[&zone],
            )
            .await
            .unwrap();
        let expected: Vec<Timestamp> = rows.iter().map(|row| row.get(0)).collect();
        let cycle = Cycle::cron("30 2 * * *", zone).unwrap();
        let found: std::collections::BTreeSet<Timestamp> = cycle
            .upcoming(at("1989-12-31T00:00:00Z"), 17_300)
            .into_iter()
            .collect();
        // December 30, 2011 is the only day in these years that one of the zones skipped. The cron
        // library merges that day with the day after it.
        let skipped_day = at("2011-12-30T12:30:00Z");
        for moment in expected
            .iter()
            .filter(|moment| !(zone == "Pacific/Apia" && **moment == skipped_day))
        {
            assert!(found.contains(moment), "{zone}: {moment} is missing");
        }
        assert!(expected.len() > 16_900, "{zone}: {}", expected.len());
    }
}

#[test]
fn past_occurrences_of_a_cycle_with_an_explicit_start_count_towards_its_repetitions() {
    let cycle = Cycle::iso("R3/2026-01-01T08:00:00Z/P1D").unwrap();
    let upcoming = |now: &str| {
        cycle
            .upcoming(at(now), 9)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let days = [
        "2026-01-01T08:00:00Z",
        "2026-01-02T08:00:00Z",
        "2026-01-03T08:00:00Z",
    ];
    assert_eq!(upcoming("2025-12-01T00:00:00Z"), days);
    assert_eq!(upcoming("2026-01-01T09:00:00Z"), days[1..]);
    assert_eq!(
        upcoming("2026-01-02T08:00:00Z"),
        days[2..],
        "an occurrence at the current time is in the past"
    );
    assert_eq!(upcoming("2026-01-03T08:00:00Z"), [""; 0]);
    assert_eq!(upcoming("2030-01-01T00:00:00Z"), [""; 0]);
    assert_eq!(cycle.upcoming(at("2025-12-01T00:00:00Z"), 0), []);
    assert_eq!(cycle.upcoming(at("2025-12-01T00:00:00Z"), 2).len(), 2);
}

#[test]
fn a_cron_line_continues_after_a_day_that_its_zone_skipped() {
    // The calendars of Samoa and Tokelau went from December 29 to December 31, 2011, and the
    // calendar of Kwajalein from August 20 to August 22, 1993.
    for (zone, now, expected) in [
        (
            "Pacific/Apia",
            "2011-12-29T09:00:00Z",
            [
                "2011-12-29T20:00:00Z",
                "2011-12-30T20:00:00Z",
                "2011-12-31T20:00:00Z",
            ],
        ),
        (
            "Pacific/Fakaofo",
            "2011-12-29T09:00:00Z",
            [
                "2011-12-29T21:00:00Z",
                "2011-12-30T21:00:00Z",
                "2011-12-31T21:00:00Z",
            ],
        ),
        (
            "Pacific/Kwajalein",
            "1993-08-20T09:00:00Z",
            [
                "1993-08-20T22:00:00Z",
                "1993-08-21T22:00:00Z",
                "1993-08-22T22:00:00Z",
            ],
        ),
    ] {
        let cycle = Cycle::cron("0 10 * * *", zone).unwrap();
        let found: Vec<String> = cycle
            .upcoming(at(now), 3)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found, expected, "{zone}");
    }
}
