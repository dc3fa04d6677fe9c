//! Computes medians and percentiles of the values that the bench has measured.

/// Returns the median of the values, or 0 if there are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 50.0)
}

/// Returns the smallest of the values that is at least as large as this percentage of all values,
/// or 0 if there are no values.
pub(crate) fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// Rounds a value to this number of decimals.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (value * factor).round() / factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_always_one_of_the_measured_values() {
        let values: Vec<f64> = (1..=200).map(f64::from).rev().collect();
        assert_eq!(
            (
                median(&values),
                percentile(&values, 99.0),
                percentile(&values, 100.0)
            ),
            (100.0, 198.0, 200.0)
        );
        assert_eq!(
            (median(&[7.0]), median(&[3.0, 1.0, 2.0]), median(&[])),
            (7.0, 2.0, 0.0)
        );
    }
}
