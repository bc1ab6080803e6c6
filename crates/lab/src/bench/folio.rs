//! Folio sizes as cases: `4KiB` to `1MiB`, `2MiB-pte`, `2MiB-pmd`.

/// Bytes of a base page.
pub const PAGE: usize = 4096;

/// The size of the folios in a case, and for 2 MiB how they are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folio {
    /// Base-2 logarithm of its pages, 0 to 9.
    pub order: u8,
    /// Mapped by one leaf of the level above (only at order 9).
    pub pmd: bool,
}

impl Folio {
    /// Every case, small to large: orders 0 to 8, then order 9 mapped by 512 PTEs, then by one PMD.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=9).map(|order| Self { order, pmd: false }).chain([Self { order: 9, pmd: true }])
    }

    /// Bytes of one folio.
    pub fn bytes(self) -> usize {
        PAGE << self.order
    }

    /// Short, stable case name.
    pub fn name(self) -> String {
        match (self.order, self.pmd) {
            (9, true) => "2MiB-pmd".to_owned(),
            (9, false) => "2MiB-pte".to_owned(),
            (8, _) => "1MiB".to_owned(),
            _ => format!("{}KiB", self.bytes() / 1024),
        }
    }
}

#[cfg(test)]
mod tests;
