//! Small things that pages are made of.

use maud::{Markup, html};

use crate::ops::Timestamp;

/// How long ago, with the exact time on hover.
pub(super) fn ago(at: Timestamp, now: Timestamp) -> Markup {
    html! { time title=(at) datetime=(at) { (span(now.0.saturating_sub(at.0))) " ago" } }
}

/// A time span in the unit that a person would use.
pub(super) fn span(millis: u64) -> String {
    let seconds = millis / 1_000;
    match seconds {
        0 => format!("{millis} ms"),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A count with spaces between thousands.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{} KiB", bytes / 1_024),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// A rate with as many digits as matter.
pub(super) fn rate(per_second: f64) -> String {
    if per_second >= 100.0 {
        count(per_second as u64)
    } else if per_second >= 0.05 {
        format!("{per_second:.1}")
    } else {
        "0".to_owned()
    }
}

pub(super) fn millis(millis: f64) -> String {
    if millis >= 1_000.0 { format!("{:.1} s", millis / 1_000.0) } else { format!("{millis:.1} ms") }
}

/// The last path segments of a handler's name: its module is on hover.
pub(super) fn handler(name: &str) -> Markup {
    let short = name.rsplit("::").next().unwrap_or(name);
    html! { @if name.is_empty() { span.dim { "no handler" } } @else { span title=(name) { (short) } } }
}

/// A line of the last minutes.
pub(super) fn sparkline(values: &[f64]) -> Markup {
    const WIDTH: f64 = 120.0;
    const HEIGHT: f64 = 24.0;
    let most = values.iter().copied().fold(0.0_f64, f64::max);
    if values.len() < 2 || most <= 0.0 {
        return html! {};
    }
    let step = WIDTH / (values.len() - 1) as f64;
    let points: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(at, value)| format!("{:.1},{:.1}", at as f64 * step, HEIGHT - 1.0 - value / most * (HEIGHT - 2.0)))
        .collect();
    let label = format!("events per second over the last minutes, at most {}", rate(most));
    html! {
        svg.spark viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } width=(WIDTH) height=(HEIGHT) role="img" aria-label=(label) {
            title { (label) }
            polyline points=(points.join(" ")) fill="none" {}
        }
    }
}

/// What a server said, or that it did not.
pub(super) fn asked<T>(answer: &Result<T, String>, show: impl FnOnce(&T) -> Markup) -> Markup {
    match answer {
        Ok(value) => show(value),
        Err(why) => html! { p.bad role="alert" { (why) } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_as_people_read_them() {
        assert_eq!(
            [0, 999, 59_999, 60_000, 7_200_000, 172_800_000].map(span),
            ["0 ms", "999 ms", "59 s", "1 min", "2 h", "2 d"]
        );
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]);
        assert_eq!([0.0, 0.04, 0.26, 99.94, 5_000.2].map(rate), ["0", "0", "0.3", "99.9", "5\u{202f}000"]);
        assert_eq!([5, 2_048, 3 << 20].map(bytes), ["5 B", "2 KiB", "3.0 MiB"]);
    }

    #[test]
    fn a_line_needs_something_to_show() {
        assert_eq!(sparkline(&[]).0, "");
        assert_eq!(sparkline(&[0.0, 0.0]).0, "");
        let line = sparkline(&[0.0, 2.0, 1.0]).0;
        assert!(line.contains("points=\"0.0,23.0 60.0,1.0 120.0,12.0\""), "{line}");
    }
}
