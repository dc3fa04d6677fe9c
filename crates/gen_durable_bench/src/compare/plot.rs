//! Bar charts as SVG.

use super::page::thousands;

const WIDTH: f64 = 720.0;
const LABELS: f64 = 230.0;
const VALUES: f64 = 80.0;
const ROW: f64 = 24.0;
const TITLE: f64 = 36.0;

/// A bar of a chart.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: f64,
    /// Whether the bar has the colour of gen_durable.
    pub(super) is_ours: bool,
}

/// Returns a chart with one bar per line. Its text has a colour that light and dark pages show.
pub(super) fn bars(title: &str, bars: &[Bar]) -> String {
    let height = TITLE + ROW * bars.len() as f64 + 8.0;
    let most = bars.iter().map(|bar| bar.value).fold(1e-9, f64::max);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#808080\">\n<title>{title}</title>\n<text x=\"0\" y=\"18\" font-size=\"15\">{title}</text>\n"
    );
    for (index, bar) in bars.iter().enumerate() {
        let y = TITLE + ROW * index as f64;
        let length = (WIDTH - LABELS - VALUES) * bar.value / most;
        let colour = if bar.is_ours { "#2f81f7" } else { "#8b949e" };
        let value = if bar.value < 100.0 {
            format!("{:.1}", bar.value)
        } else {
            thousands(bar.value)
        };
        svg.push_str(&format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{LABELS}\" y=\"{}\" width=\"{length:.1}\" height=\"16\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{}\">{value}</text>\n",
            LABELS - 8.0,
            y + 13.0,
            bar.label,
            y,
            LABELS + length + 6.0,
            y + 13.0,
        ));
    }
    svg.push_str("</svg>\n");
    svg
}
