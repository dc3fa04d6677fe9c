//! Zones by name, and dates that say where they are.

use jiff::{
    Timestamp, Zoned,
    civil::DateTime,
    fmt::temporal::{DateTimeParser, Pieces, PiecesOffset},
    tz::TimeZone,
};

/// What a zone should look like.
const EXAMPLE: &str =
    "write a name of the IANA database, like `Europe/Madrid` or `UTC`, or an offset, like `+02:00`";

/// A zone by its name: `Europe/Madrid`, `UTC`, or a fixed offset like `+02:00`.
pub(crate) fn zone(name: &str) -> Result<TimeZone, String> {
    let name = name.trim();
    if name.starts_with(['+', '-']) {
        return DateTimeParser::new()
            .parse_time_zone(name)
            .map_err(|error| format!("{name:?} is not an offset ({error}): {EXAMPLE}"));
    }
    if name.eq_ignore_ascii_case("utc") || name == "Z" {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name).map_err(|_| format!("there is no time zone {name:?}: {EXAMPLE}"))
}

/// How it is written.
pub(crate) fn name_of(zone: &TimeZone) -> String {
    match zone.iana_name() {
        Some(name) => name.to_owned(),
        None => zone
            .to_fixed_offset()
            .map_or_else(|_| "UTC".to_owned(), |offset| offset.to_string()),
    }
}

/// `text[zone]`, as the text and its zone.
pub(crate) fn bracketed(text: &str) -> Result<(&str, Option<TimeZone>), String> {
    let text = text.trim();
    let Some(rest) = text.strip_suffix(']') else {
        return Ok((text, None));
    };
    let Some((text, name)) = rest.rsplit_once('[') else {
        return Err(format!(
            "{text:?} ends with a bracket that was never opened: write it like `P1D[Europe/Madrid]`"
        ));
    };
    Ok((text.trim_end(), Some(zone(name)?)))
}

/// A date and time in its place: what the calendar goes by, and what the clock on that wall says.
pub(crate) fn dated(text: &str) -> Result<(DateTime, TimeZone), String> {
    let wrong = |why: String| {
        format!(
            "{text:?} is not a date: {why}; write it like `2026-01-05T08:00:00[Europe/Madrid]`, `…+01:00` or `…Z`"
        )
    };
    let pieces = Pieces::parse(text).map_err(|error| wrong(error.to_string()))?;
    let Some(time) = pieces.time() else {
        return Err(wrong("it has no time of day".into()));
    };
    let civil = pieces.date().to_datetime(time);
    let named = match pieces.time_zone_annotation() {
        None => None,
        // By our own reading: one way to name a zone, and one way to be told that there is none.
        Some(_) => bracketed(text).map_err(&wrong)?.1,
    };
    let offset = match pieces.offset() {
        None => None,
        Some(PiecesOffset::Numeric(offset)) => Some(offset.offset()),
        Some(_) => Some(jiff::tz::Offset::UTC),
    };
    match (named, offset) {
        (Some(zone), None) => Ok((civil, zone)),
        (None, Some(offset)) => Ok((
            civil,
            if offset == jiff::tz::Offset::UTC {
                TimeZone::UTC
            } else {
                TimeZone::fixed(offset)
            },
        )),
        (Some(zone), Some(offset)) => {
            let at = offset
                .to_timestamp(civil)
                .map_err(|error| wrong(error.to_string()))?;
            if zone.to_offset(at) != offset {
                let name = name_of(&zone);
                return Err(wrong(format!("{name} is not at {offset} then")));
            }
            Ok((civil, zone))
        }
        (None, None) => Err(wrong("it does not say in which time zone".into())),
    }
}

/// That moment. A local time that the clocks skip is as much later as they skip; one that comes twice is the first.
pub(crate) fn moment(civil: DateTime, zone: &TimeZone) -> Option<Zoned> {
    zone.to_ambiguous_zoned(civil).compatible().ok()
}

/// The moment of a written date.
pub(crate) fn date(text: &str) -> Result<Timestamp, String> {
    let (civil, zone) = dated(text)?;
    let at = moment(civil, &zone)
        .ok_or_else(|| format!("{text:?} is beyond the years that a clock can show"))?;
    Ok(at.timestamp())
}
