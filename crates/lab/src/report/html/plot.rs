//! Plots as SVG. They are drawn in colours that stand for a role; the styles of the page say which colour that is in
//! light and in dark.

use anyhow::{Result, anyhow};
use maud::{Markup, PreEscaped, html};
use plotters::coord::CoordTranslate;
use plotters::coord::ranged1d::{AsRangedCoord, SegmentValue, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Text and axes, the lines behind the marks, and four series whose colours are told apart by the colour-blind (Okabe and
/// Ito, 2008).
const INK: RGBColor = RGBColor(0, 0, 1);
const SOFT: RGBColor = RGBColor(0, 0, 2);
const SERIES: [RGBColor; 4] =
    [RGBColor(0, 0, 17), RGBColor(0, 0, 18), RGBColor(0, 0, 19), RGBColor(0, 0, 20)];

/// A series of marks: the place in [`SERIES`] and the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Circle,
    Triangle,
    Cross,
}

/// A row of a plot of ratios, and its marks.
pub(super) struct Ratios {
    pub name: String,
    pub marks: Vec<(Mark, f64)>,
}

type Chart<'a, 'b, C> = ChartContext<'a, SVGBackend<'b>, C>;

const WIDTH: u32 = 440;
const HEIGHT: u32 = 300;
const ROW: u32 = 28;

/// Marks by row on a logarithmic axis of ratios, with a line at 1.
///
/// # Errors
/// Those of the plotting library.
pub(super) fn ratios(rows: &[Ratios], axis: &str, told: &str) -> Result<Markup> {
    let values = || rows.iter().flat_map(|row| &row.marks).map(|(_, value)| *value);
    // From a third to ten times at least, so that two powers of ten stand at the axis.
    let least = values().fold(0.5, f64::min) / 1.6;
    let most = values().fold(7.0, f64::max) * 1.6;
    let size = (WIDTH, ROW * rows.len() as u32 + 70);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(6)
            .set_label_area_size(LabelAreaPosition::Left, 176)
            .set_label_area_size(LabelAreaPosition::Bottom, 44)
            .build_cartesian_2d((least..most).log_scale(), (0..rows.len()).into_segmented())
            .map_err(failed)?;
        // The first row is on top.
        let place = |row: usize| rows.len() - 1 - row;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(SOFT)
            .axis_style(SOFT)
            .x_labels(5)
            .x_label_formatter(&|ratio| short(*ratio))
            .x_desc(logarithmic(axis))
            .y_labels(rows.len())
            .y_label_formatter(&|segment| match segment {
                SegmentValue::CenterOf(at) if *at < rows.len() => rows[place(*at)].name.clone(),
                _ => String::new(),
            })
            .label_style(text(14))
            .axis_desc_style(text(14))
            .draw()
            .map_err(failed)?;
        let one = [(1.0, SegmentValue::Exact(0)), (1.0, SegmentValue::Last)];
        chart.draw_series(std::iter::once(PathElement::new(one, INK.stroke_width(2)))).map_err(failed)?;
        for (at, row) in rows.iter().enumerate() {
            for &(mark, value) in &row.marks {
                draw(&mut chart, mark, (value, SegmentValue::CenterOf(place(at))))?;
            }
        }
        area.present().map_err(failed)?;
    }
    Ok(figure(&svg, told))
}

/// Marks at predicted and measured values, on logarithmic axes with the diagonal.
///
/// # Errors
/// Those of the plotting library.
pub(super) fn diagonal(
    points: &[(Mark, f64, f64)],
    shown: fn(f64) -> String,
    names: [&str; 2],
    told: &str,
) -> Result<Markup> {
    let values = || points.iter().flat_map(|&(_, x, y)| [x, y]).filter(|value| *value > 0.0);
    let (least, most) = decades(values().fold(f64::MAX, f64::min), values().fold(1.0, f64::max));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, WIDTH - 40)).into_drawing_area();
        let range = || (least..most).log_scale();
        let names = names.map(logarithmic);
        let names = names.each_ref().map(String::as_str);
        let mut chart = axes(&area, range(), range(), names, [&shown, &shown])?;
        let line = [(least, least), (most, most)];
        chart.draw_series(std::iter::once(PathElement::new(line, INK.stroke_width(1)))).map_err(failed)?;
        for &(mark, x, y) in points.iter().filter(|(_, x, y)| *x > 0.0 && *y > 0.0) {
            draw(&mut chart, mark, (x, y))?;
        }
        area.present().map_err(failed)?;
    }
    Ok(figure(&svg, told))
}

/// A mark with its name.
pub(super) struct Named {
    pub mark: Mark,
    pub name: String,
    pub at: (f64, f64),
}

/// Marks with their names, on a linear axis from 0 across and a logarithmic one upright. Later points are drawn over
/// earlier ones; a name that would lie on that of a later point is left out.
///
/// # Errors
/// Those of the plotting library.
pub(super) fn named(points: &[Named], names: [&str; 2], told: &str) -> Result<Markup> {
    // A third of the width is left for the name of the point furthest to the right.
    let right = points.iter().map(|point| point.at.0).fold(0.5, f64::max) * 1.35;
    let upright = || points.iter().map(|point| point.at.1);
    let (bottom, top) = decades(upright().fold(f64::MAX, f64::min), upright().fold(1.0, f64::max));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let upright = (bottom..top).log_scale();
        let name = logarithmic(names[1]);
        let names = [names[0], &name];
        let mut chart = axes(&area, 0.0..right, upright, names, [&|value| plain(value, right), &thousands])?;
        let mut places: Vec<(i32, i32)> = Vec::new();
        let mut named = Vec::new();
        for point in points.iter().rev() {
            let place = chart.backend_coord(&point.at);
            let covers =
                |other: &(i32, i32)| (other.0 - place.0).abs() < 60 && (other.1 - place.1).abs() < 13;
            if !places.iter().any(covers) {
                places.push(place);
                named.push(point);
            }
        }
        for point in points {
            draw(&mut chart, point.mark, point.at)?;
        }
        for point in named {
            let style = text(13).pos(Pos::new(HPos::Left, VPos::Bottom));
            let label = EmptyElement::at(point.at) + Text::new(point.name.clone(), (7, -3), style);
            chart.draw_series([label]).map_err(failed)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(figure(&svg, told))
}

/// The name of an axis whose steps are not equal, which it says.
fn logarithmic(name: &str) -> String {
    format!("{name} (logarithmic)")
}

/// The powers of ten around a range, so that a logarithmic axis has at least two numbers.
fn decades(least: f64, most: f64) -> (f64, f64) {
    (10f64.powf(least.min(most).log10().floor()), 10f64.powf((most * 1.01).log10().ceil()))
}

/// Lines on two linear axes from 0, in the colours of their marks.
///
/// # Errors
/// Those of the plotting library.
pub(super) fn lines(series: &[(Mark, Vec<(f64, f64)>)], names: [&str; 2], told: &str) -> Result<Markup> {
    let points = || series.iter().flat_map(|(_, points)| points);
    let right = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
    let top = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max) * 1.1;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        // Whole numbers would not tell the lines of a low plot apart.
        let upright = |value| if top < 10.0 { plain(value, top) } else { thousands(value) };
        let mut chart = axes(&area, 0.0..right, 0.0..top, names, [&|value| plain(value, right), &upright])?;
        for (mark, points) in series {
            let line = LineSeries::new(points.iter().copied(), SERIES[*mark as usize].stroke_width(3));
            chart.draw_series(line).map_err(failed)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(figure(&svg, told))
}

/// A row of a heat map: its name, and a value for each step.
pub(super) type Row = (String, Vec<f64>);

/// Values by row, the first at the bottom, and by step, over `across` in all: the higher, the darker.
///
/// # Errors
/// Those of the plotting library.
pub(super) fn heat(rows: &[Row], across: f64, names: [&str; 2], told: &str) -> Result<Markup> {
    let most = rows.iter().flat_map(|(_, values)| values).copied().fold(f64::MIN_POSITIVE, f64::max);
    let (right, top) = (across.max(f64::MIN_POSITIVE), rows.len().max(1) as f64);
    let name = |at: f64| rows.get(at as usize).map_or_else(String::new, |(name, _)| name.clone());
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, WIDTH - 40)).into_drawing_area();
        let mut chart = axes(&area, 0.0..right, 0.0..top, names, [&|value| plain(value, right), &name])?;
        for (at, (_, values)) in rows.iter().enumerate() {
            let step = right / values.len().max(1) as f64;
            let cells =
                values.iter().enumerate().filter(|(_, value)| **value > 0.0).map(|(column, value)| {
                    let corners =
                        [(column as f64 * step, at as f64), ((column + 1) as f64 * step, at as f64 + 1.0)];
                    // One page in a step is seen too.
                    Rectangle::new(corners, SERIES[0].mix(0.15 + 0.85 * (value / most).sqrt()).filled())
                });
            chart.draw_series(cells).map_err(failed)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(figure(&svg, told))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Plane<X, Y> = Cartesian2d<<X as AsRangedCoord>::CoordDescType, <Y as AsRangedCoord>::CoordDescType>;

/// Two axes with their names and numbers.
fn axes<'a, 'b, X, Y>(
    area: &'a Area<'b>,
    across: X,
    upright: Y,
    names: [&str; 2],
    shown: [&dyn Fn(f64) -> String; 2],
) -> Result<Chart<'a, 'b, Plane<X, Y>>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(36)
        .set_label_area_size(LabelAreaPosition::Left, 78)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d(across, upright)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(SOFT)
        .axis_style(SOFT)
        .x_labels(6)
        .y_labels(6)
        .x_label_formatter(&|value| shown[0](*value))
        .y_label_formatter(&|value| shown[1](*value))
        .x_desc(names[0])
        .y_desc(names[1])
        .label_style(text(14))
        .axis_desc_style(text(14))
        .draw()
        .map_err(failed)?;
    Ok(chart)
}

/// A number at an axis that ends at `most`, with as many digits as tell its numbers apart.
fn plain(number: f64, most: f64) -> String {
    let digits = if most < 2.0 { 2 } else { usize::from(most < 10.0) };
    format!("{number:.digits$}")
}

/// Draws one mark.
fn draw<'a, 'b, X, Y, C>(chart: &mut Chart<'a, 'b, C>, mark: Mark, at: (X, Y)) -> Result<()>
where
    X: Clone + 'static,
    Y: Clone + 'static,
    C: CoordTranslate<From = (X, Y)>,
{
    let colour = SERIES[mark as usize];
    match mark {
        Mark::Circle => chart.draw_series([Circle::new(at, 5, colour.filled())]).map(drop),
        Mark::Triangle => chart.draw_series([TriangleMarker::new(at, 6, colour.filled())]).map(drop),
        Mark::Cross => chart.draw_series([Cross::new(at, 5, colour.stroke_width(3))]).map(drop),
    }
    .map_err(failed)
}

/// A plot with its description.
fn figure(svg: &str, told: &str) -> Markup {
    // Without fixed sizes the plot is as wide as its card.
    let from = svg.find("viewBox").unwrap_or(0);
    html! {
        figure role="img" aria-label=(told) {
            (PreEscaped(format!("<svg aria-hidden=\"true\" {}", &svg[from..])))
        }
    }
}

fn text(size: i32) -> TextStyle<'static> {
    let style = ("sans-serif", size).into_text_style(&(1, 1));
    style.color(&INK).pos(Pos::new(HPos::Left, VPos::Top))
}

/// A number with its thousands apart.
pub(super) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let at = |place: usize| place > 0 && (digits.len() - place).is_multiple_of(3);
    digits.chars().enumerate().fold(String::new(), |mut text, (place, digit)| {
        if at(place) {
            text.push('\u{202f}');
        }
        text.push(digit);
        text
    })
}

/// A ratio at an axis.
fn short(ratio: f64) -> String {
    if ratio >= 1.0 { format!("{ratio:.0}×") } else { format!("{}×", (ratio * 100.0).round() / 100.0) }
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw a plot: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal steps of such an axis are equal factors.
    #[test]
    fn an_axis_says_that_it_is_logarithmic() {
        let said = |plot: Result<Markup>| plot.unwrap().into_string().matches("(logarithmic)").count();
        let mark = || Named { mark: Mark::Circle, name: "4K".to_owned(), at: (1.0, 10.0) };
        assert_eq!(said(named(&[mark()], ["%", "faults"], "a mark")), 1);
        assert_eq!(said(diagonal(&[(Mark::Circle, 1.0, 2.0)], thousands, ["x", "y"], "a mark")), 2);
        let row = Ratios { name: "a".to_owned(), marks: vec![(Mark::Circle, 2.0)] };
        assert_eq!(said(ratios(&[row], "times", "a mark")), 1);
        assert_eq!(said(lines(&[(Mark::Circle, vec![(0.0, 1.0)])], ["s", "MiB"], "a line")), 0);
    }

    /// An axis up to 2 had the numbers 0, 0, 1, 2.
    #[test]
    fn no_two_numbers_of_an_axis_are_the_same() {
        for most in [0.4, 1.8, 7.0, 170.0, 60_000.0] {
            let line = vec![(0.0, 0.0), (8.0, most)];
            let drawn = lines(&[(Mark::Circle, line)], ["seconds", "MiB"], "a line").unwrap().into_string();
            // The numbers of the upright axis end where it begins.
            let texts = drawn.split("<text ").skip(1).filter(|text| text.contains("text-anchor=\"end\""));
            let numbers: Vec<&str> =
                texts.filter_map(|text| text.split('>').nth(1)?.split('<').next()).map(str::trim).collect();
            let mut each = numbers.clone();
            each.sort_unstable();
            each.dedup();
            assert!(numbers.len() > 2 && each.len() == numbers.len(), "{numbers:?} up to {most}");
        }
    }
}
