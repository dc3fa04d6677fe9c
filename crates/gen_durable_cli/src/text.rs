//! Formats numbers, times and errors, and escapes text that must not reach a terminal unchanged.

use gen_durable::schedule::Timestamp;

/// Formats an error and its causes in one line. Omits a cause if the text already contains it: the
/// messages of some libraries include the text of their causes.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Escapes text from the database for a terminal: replaces control characters, and characters that
/// reorder or hide text, by escapes.
pub(crate) fn safe(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if is_dangerous(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// Escapes JSON text for a terminal: replaces control characters and invisible characters by JSON
/// escapes, so that programs still parse the same JSON value.
pub(crate) fn safe_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // Does not escape a line break, because JSON text has line breaks only outside its strings.
        // All other characters to escape are inside strings.
        if is_dangerous(c) && c != '\n' {
            let mut units = [0_u16; 2];
            c.encode_utf16(&mut units)
                .iter()
                .for_each(|unit| shown.push_str(&format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns true for control characters (escape sequences start with one), and for characters that
/// change the text direction or are invisible.
fn is_dangerous(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// Truncates text to `most` characters.
pub(crate) fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(most.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

/// Indents JSON over several lines. Numbers and strings stay unchanged.
pub(crate) fn indented(json: &str) -> String {
    let mut shown = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let mut rest = json.chars().peekable();
    while let Some(c) = rest.next() {
        if in_string {
            shown.push(c);
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '"' => {
                in_string = true;
                shown.push(c);
            }
            '{' | '[' if rest.peek().is_some_and(|next| matches!(next, '}' | ']')) => shown.push(c),
            '{' | '[' => {
                depth += 1;
                shown.push(c);
                new_line(&mut shown, depth);
            }
            '}' | ']' => {
                if !shown.ends_with(['{', '[']) {
                    depth = depth.saturating_sub(1);
                    new_line(&mut shown, depth);
                }
                shown.push(c);
            }
            ',' => {
                shown.push(c);
                new_line(&mut shown, depth);
            }
            c if c.is_whitespace() && shown.ends_with([' ', '\n']) => {}
            c => shown.push(c),
        }
    }
    shown
}

fn new_line(shown: &mut String, depth: usize) {
    shown.push('\n');
    (0..depth).for_each(|_| shown.push_str("  "));
}

/// Formats 1234567 as "1,234,567".
pub(crate) fn thousands<N: TryInto<i64>>(number: N) -> String {
    let number = number.try_into().unwrap_or(i64::MAX);
    let digits = number.unsigned_abs().to_string();
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            shown.push(',');
        }
        shown.push(digit);
    }
    if number < 0 {
        format!("-{shown}")
    } else {
        shown
    }
}

/// Formats a time relative to now: "3 s ago", "in 2 min".
pub(crate) fn relative(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs_f64();
    match seconds {
        s if s.abs() < 1.0 => "now".to_owned(),
        s if s > 0.0 => format!("{} ago", span(s)),
        s => format!("in {}", span(-s)),
    }
}

/// Formats a duration: "340 ms", "1.2 s", "12 s", "5 min", "3 h", "2 d".
pub(crate) fn span(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 2.0 * 3600.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86400.0),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_for_a_terminal() {
        let evil = "a\u{1b}[31mred\u{9b}2J\r\n\u{202e}x\u{7f}\u{e0041}é";
        assert_eq!(
            safe(evil),
            "a\\u{1b}[31mred\\u{9b}2J\\r\\n\\u{202e}x\\u{7f}\\u{e0041}é"
        );
        let json = serde_json::to_string(evil).unwrap();
        let shown = safe_json(&json);
        assert!(!shown.chars().any(is_dangerous), "{shown:?}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), evil);
    }

    #[test]
    fn json_is_indented_without_changing_its_values() {
        let json =
            r#"{"a": [1, 123456789012345678901234567890], "b": {}, "c": "x{,}\"[", "d": []}"#;
        let shown = indented(json);
        let expected = "{\n  \"a\": [\n    1,\n    123456789012345678901234567890\n  ],\n  \"b\": {},\n  \"c\": \"x{,}\\\"[\",\n  \"d\": []\n}";
        assert_eq!(shown, expected);
        assert_eq!(indented("null"), "null");
    }

    #[test]
    fn numbers_durations_and_times_are_formatted_and_long_texts_are_shortened() {
        assert_eq!(
            [0, 999, 1000, -1234567].map(thousands::<i64>),
            ["0", "999", "1,000", "-1,234,567"]
        );
        assert_eq!(
            [0.34, 1.24, 59.0, 600.0, 7200.0].map(span),
            ["340 ms", "1.2 s", "59 s", "10 min", "2 h"]
        );
        let now = Timestamp::UNIX_EPOCH;
        let later = Timestamp::from_second(90).unwrap();
        assert_eq!(
            (relative(now, later), relative(later, now)),
            ("90 s ago".into(), "in 90 s".into())
        );
        assert_eq!(
            (short("abcdef", 4), short("abc", 4)),
            ("abc…".into(), "abc".into())
        );
    }
}
