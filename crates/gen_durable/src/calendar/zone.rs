//! Time zones by name, and dates with a time zone.

use jiff::{
    Timestamp, Zoned,
    civil::DateTime,
    fmt::temporal::{DateTimeParser, Pieces, PiecesOffset},
    tz::TimeZone,
};

/// The advice in error messages about time zones: which names to write.
const EXAMPLE: &str =
    "write a name of the IANA database, like `Europe/Madrid` or `UTC`, or an offset, like `+02:00`";

/// Returns the zone with this name: `Europe/Madrid`, `UTC`, or a fixed offset like `+02:00`.
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

/// Returns the name of a time zone.
pub(crate) fn name_of(zone: &TimeZone) -> String {
    match zone.iana_name() {
        Some(name) => name.to_owned(),
        None => zone
            .to_fixed_offset()
            .map_or_else(|_| "UTC".to_owned(), |offset| offset.to_string()),
    }
}

/// Splits `text[zone]` into the text and its zone.
pub(crate) fn bracketed(text: &str) -> Result<(&str, Option<TimeZone>), String> {
    let text = text.trim();
    let Some(rest) = text.strip_suffix(']') else {
        return Ok((text, None));
    };
    let Some((text, name)) = rest.rsplit_once('[') else {
        return Err(format!(
            "{text:?} ends with `]` without a `[`: write it like `P1D[Europe/Madrid]`"
        ));
    };
    Ok((text.trim_end(), Some(zone(name)?)))
}

/// Parses a date and time with its zone. Returns the local time and the zone.
pub(crate) fn dated(text: &str) -> Result<(DateTime, TimeZone), String> {
    let wrong = |why: String| {
        format!(
            "{text:?} is not a date: {why}; write it like `2026-01-05T08:00:00[Europe/Madrid]`, `..+01:00` or `..Z`"
        )
    };
    let pieces = Pieces::parse(text).map_err(|error| wrong(error.to_string()))?;
    let Some(time) = pieces.time() else {
        return Err(wrong("it has no time of day".into()));
    };
    let civil = pieces.date().to_datetime(time);
    let named = match pieces.time_zone_annotation() {
        None => None,
        // `bracketed` and not jiff parses the zone, so that dates, periods and cycles accept the
        // same zone names and report the same errors.
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
                return Err(wrong(format!(
                    "{name} has another offset than {offset} at that time"
                )));
            }
            Ok((civil, zone))
        }
        (None, None) => Err(wrong("it has no time zone".into())),
    }
}

/// Returns the time of a local time in a zone. A local time that the clocks skip is shifted later
/// by the skipped amount; a local time that occurs twice means the first of the two.
pub(crate) fn moment(civil: DateTime, zone: &TimeZone) -> Option<Zoned> {
    zone.to_ambiguous_zoned(civil).compatible().ok()
}

/// Parses a date with its zone and returns it as a `Timestamp`.
pub(crate) fn date(text: &str) -> Result<Timestamp, String> {
    let (civil, zone) = dated(text)?;
    let at =
        moment(civil, &zone).ok_or_else(|| format!("{text:?} is outside the supported years"))?;
    Ok(at.timestamp())
}
