//! Reads what the program prints.

/// A line of the program. The kernel's own lines are none.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A group of rows starts.
    Begin(String),
    /// A figure, or why there is none.
    Row(String, Result<f64, String>),
    /// All groups have run.
    Done,
}

impl Line {
    /// The line that `text` is. The serial line ends lines by CR LF.
    pub fn of(text: &str) -> Option<Self> {
        let text = text.trim_end();
        if text == "done" {
            return Some(Self::Done);
        }
        if let Some(group) = text.strip_prefix("begin ") {
            return Some(Self::Begin(group.to_owned()));
        }
        let (name, figure) = text.strip_prefix("row ")?.split_once(' ')?;
        let figure = match figure.strip_prefix("n/a: ") {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(figure.split(' ').next()?.parse().ok().filter(|value: &f64| value.is_finite())?),
        };
        Some(Self::Row(name.to_owned(), figure))
    }
}

/// What the program in a machine reported in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The rows so far.
    pub rows: Vec<(String, Result<f64, String>)>,
    /// The group that runs.
    pub group: Option<String>,
    /// Whether all groups have run.
    pub done: bool,
    /// The last lines that are not the program's, such as a panic of the kernel.
    pub other: Vec<String>,
}

/// The number of foreign lines that are kept.
const KEPT: usize = 40;

impl Report {
    /// Takes in one line.
    pub fn line(&mut self, text: &str) {
        match Line::of(text) {
            Some(Line::Begin(group)) => self.group = Some(group),
            Some(Line::Row(name, figure)) => self.rows.push((name, figure)),
            Some(Line::Done) => self.done = true,
            None => {
                if self.other.len() == KEPT {
                    self.other.remove(0);
                }
                self.other.push(text.trim_end().to_owned());
            }
        }
    }

    /// The figure of the row `name`.
    pub fn row(&self, name: &str) -> Option<&Result<f64, String>> {
        self.rows.iter().find(|(known, _)| known == name).map(|(_, figure)| figure)
    }
}
