//! Computes fingerprints of errors. Errors that differ only in the numbers and names they mention
//! have the same fingerprint.

/// Returns the error text with variable parts replaced: numbers, long hexadecimal words, and quoted
/// text. The returned text has about 200 characters at most.
pub(crate) fn fingerprint(error: &str) -> String {
    let mut shown = String::with_capacity(error.len().min(200));
    let mut rest = error.chars().peekable();
    while let Some(c) = rest.next() {
        if matches!(c, '"' | '`') {
            // A quotation mark stays unchanged if no closing quotation mark is within the next 200
            // characters of the error text.
            let mut ahead = rest.clone();
            if ahead.by_ref().take(200).any(|other| other == c) {
                rest = ahead;
                shown.push_str("\"…\"");
                continue;
            }
            shown.push(c);
        } else if c.is_alphanumeric() {
            let mut word = String::from(c);
            while let Some(next) = rest.next_if(|next| next.is_alphanumeric()) {
                word.push(next);
            }
            shown.push_str(if is_variable(&word) { "#" } else { &word });
        } else {
            shown.push(c);
        }
        if shown.len() >= 200 {
            break;
        }
    }
    // Replaces a group of placeholders by one placeholder: "#-#-#" (a UUID) and "#.#" (a decimal
    // number) become "#".
    let mut before = String::new();
    while before != shown {
        before.clone_from(&shown);
        shown = shown
            .replace("#-#", "#")
            .replace("#.#", "#")
            .replace("#:#", "#");
    }
    shown.trim().to_owned()
}

fn is_variable(word: &str) -> bool {
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let begins = word.starts_with(|c: char| c.is_ascii_digit());
    let is_hex = word.len() >= 4 && word.chars().all(|c| c.is_ascii_hexdigit());
    // Returns true for words such as "7", "12s" and "0b5e", and for a long hexadecimal word without
    // digits, such as "ffffffff".
    (digits > 0 && (begins || digits * 2 >= word.len() || is_hex || word.len() >= 16))
        || (is_hex && word.len() >= 8)
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    #[test]
    fn error_texts_that_differ_only_in_numbers_and_quoted_names_have_the_same_fingerprint() {
        let same = |a: &str, b: &str| assert_eq!(fingerprint(a), fingerprint(b), "{a} / {b}");
        same("order 7 not found", "order 12345 not found");
        same(
            "no answer within 1.5s from 10.0.0.1:5432",
            "no answer within 12.25s from 10.0.0.17:6432",
        );
        same(
            "row 0b5e7c36-2d94-4d0c-9f35-6d7f3f5d0a11 is gone",
            "row ffffffff-0000-4d0c-9f35-6d7f3f5d0a11 is gone",
        );
        same("unknown field `a`", "unknown field `b`");
        assert_ne!(fingerprint("card declined"), fingerprint("card expired"));
        assert_eq!(fingerprint("it's his fault"), "it's his fault");
    }
}
