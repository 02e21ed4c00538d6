//! The README's pictures.

use std::path::Path;

use plotters::prelude::*;
use serde_json::Value;

use crate::Failed;

const SIZE: (u32, u32) = (800, 360);
/// Ours, then the others'.
const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xeb);
const OTHERS: RGBColor = RGBColor(0x8a, 0x8f, 0x98);

/// Bars, on a logarithmic scale: a name, its events per second, and whether it is ours.
pub fn throughput(file: &Path, bars: &[(String, f64, bool)]) -> Result<(), Failed> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let most = bars.iter().map(|(_, eps, _)| *eps).fold(1_000.0, f64::max) * 1.5;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .caption("events per second (logarithmic)", ("sans-serif", 16))
        .x_label_area_size(28)
        .y_label_area_size(150)
        .build_cartesian_2d((100.0..most).log_scale(), 0.0..bars.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_label_formatter(&|_| String::new())
        .x_label_formatter(&|eps| format!("{eps:.0}"))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (row, (name, eps, is_ours)) in bars.iter().rev().enumerate() {
        let row = row as f64;
        let color = if *is_ours { OURS } else { OTHERS };
        let bar = Rectangle::new([(100.0, row + 0.12), (*eps, row + 0.88)], color.filled());
        chart.draw_series([bar])?;
        let (x, y) = chart.backend_coord(&(100.0, row));
        root.draw(&Text::new(name.clone(), (12, y - 18), ("sans-serif", 12)))?;
        root.draw(&Text::new(format!("{eps:.0}"), (x + 6, y - 18), ("sans-serif", 12).into_font().color(&WHITE)))?;
    }
    Ok(root.present()?)
}

/// A line over the numbers that name the entries of `eps`, both axes logarithmic.
pub fn against(file: &Path, what: &str, eps: &Value) -> Result<(), Failed> {
    let mut points: Vec<(f64, f64)> =
        eps.as_object().into_iter().flatten().filter_map(|(at, eps)| Some((at.parse().ok()?, eps.as_f64()?))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Err("nothing to draw".into()) };
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max) * 1.2;
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .caption(format!("events per second against {what}"), ("sans-serif", 16))
        .x_label_area_size(28)
        .y_label_area_size(60)
        .build_cartesian_2d((first.0..last.0).log_scale(), 0.0..most)?;
    chart.configure_mesh().label_style(("sans-serif", 12)).draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), OURS.stroke_width(2)))?;
    chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, OURS.filled())))?;
    Ok(root.present()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_are_drawn() {
        let folder = std::env::temp_dir().join(format!("idem-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let bars: Vec<(String, f64, bool)> =
            (1..=10).map(|row| (format!("bar {row}"), 300.0 * f64::from(row * row), row % 2 == 0)).collect();
        throughput(&folder.join("bars.svg"), &bars).unwrap();
        let eps = serde_json::json!({ "1000": 900.0, "20000": 9_000.0, "400000": 13_000.0 });
        against(&folder.join("line.svg"), "the events that wait", &eps).unwrap();
        let bars = std::fs::read_to_string(folder.join("bars.svg")).unwrap();
        assert!(bars.contains("bar 10") && bars.matches("<rect").count() >= 10, "{bars}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
