//! Values over time in one line of a table.

/// Heights, lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A bar for each value, from nothing to `most`; nothing at all is a dot.
pub fn sparkline(values: impl IntoIterator<Item = f64>, most: f64) -> String {
    let bar = |value: f64| {
        if value <= 0.0 || most <= 0.0 {
            return '·';
        }
        BARS[((value / most * BARS.len() as f64).ceil() as usize).clamp(1, BARS.len()) - 1]
    };
    values.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests;
