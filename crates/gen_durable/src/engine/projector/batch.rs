//! Functions over a batch of events: find gaps, measure the size of the batch, and compute the
//! running hash of applied events.

use crate::store::projections::LogRow;

/// Returns an error text if events are missing between the cursor of the scope and the end of the
/// batch. The cursor never moves past missing events.
pub(crate) fn gap(position: i64, events: &[LogRow]) -> Option<String> {
    let mut expected = position;
    events.iter().find_map(|row| {
        expected += 1;
        (row.position != expected).then(|| {
            format!(
                "events {expected} to {} are not in the log any more: it was trimmed",
                row.position - 1
            )
        })
    })
}

/// Returns an error text if events between `position` and `end` are missing, even if the batch is
/// empty.
pub(crate) fn missing(position: i64, end: i64, events: &[LogRow]) -> Option<String> {
    match events {
        [] if position < end => Some(format!(
            "events {} to {end} are not in the log any more: it was trimmed",
            position + 1
        )),
        events => gap(position, events),
    }
}

/// Returns the running hash of the applied events: FNV-1a over positions, names and payloads. The
/// hash does not depend on how the events are divided into batches.
pub(crate) fn running_hash(before: i64, events: &[LogRow]) -> i64 {
    let mut hash = if before == 0 {
        0xcbf2_9ce4_8422_2325_u64
    } else {
        before.cast_unsigned()
    };
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for row in events {
        if let Some(payload) = &row.payload {
            add(&row.position.to_le_bytes());
            add(row.name.as_bytes());
            add(payload.as_bytes());
        }
    }
    hash.cast_signed()
}

pub(crate) fn weight(events: &[LogRow]) -> i64 {
    let bytes: usize = events
        .iter()
        .filter_map(|row| row.payload.as_ref())
        .map(String::len)
        .sum();
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn row(position: i64, payload: Option<&str>) -> LogRow {
        LogRow {
            position,
            at: Timestamp::UNIX_EPOCH,
            name: "e".into(),
            version: 1,
            payload: payload.map(str::to_owned),
            headers: None,
            instance_id: None,
            step: None,
        }
    }

    #[test]
    fn the_running_hash_of_applied_events_does_not_depend_on_the_batch_boundaries() {
        let rows: Vec<LogRow> = (1..=6).map(|n| row(n, (n != 3).then_some("1"))).collect();
        let whole = running_hash(0, &rows);
        for cut in 0..=rows.len() {
            let (first, second) = rows.split_at(cut);
            assert_eq!(
                running_hash(running_hash(0, first), second),
                whole,
                "cut at {cut}"
            );
        }
        let other: Vec<LogRow> = (1..=6).map(|n| row(n, (n != 4).then_some("1"))).collect();
        assert_ne!(running_hash(0, &other), whole);
    }

    #[test]
    fn missing_events_in_a_projection_batch_are_reported_at_any_position() {
        let rows = |positions: &[i64]| positions.iter().map(|n| row(*n, None)).collect::<Vec<_>>();
        assert_eq!(gap(4, &rows(&[5, 6, 7])), None);
        assert_eq!(gap(0, &[]), None);
        assert!(gap(4, &rows(&[7])).is_some_and(|missing_events| {
            missing_events.contains("events 5 to 6 are not in the log")
        }));
        assert!(
            gap(4, &rows(&[5, 8]))
                .is_some_and(|missing_events| missing_events.contains("events 6 to 7"))
        );
        assert_eq!(missing(4, 4, &[]), None);
        assert!(missing(4, 9, &[]).is_some_and(|missing_events| {
            missing_events.contains("events 5 to 9 are not in the log")
        }));
        assert!(
            missing(4, 9, &rows(&[7]))
                .is_some_and(|missing_events| missing_events.contains("events 5 to 6"))
        );
    }
}
