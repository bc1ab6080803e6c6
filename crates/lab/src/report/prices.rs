//! What a call, a trap and a system call cost where figures were taken, on the page of measured figures.

use super::judge::Measured;
use super::markdown::wrapped;
use crate::bench::crossings::Crossings;

/// The prices that only one side of a ratio pays, as the newest launch that has them says; empty where both sides pay.
pub(super) fn text(measured: &Measured<'_>) -> String {
    let launches = measured.cases.iter().flat_map(|case| case.run.results.header.launches.iter().rev());
    let here = launches.filter_map(|launch| launch.crossings).next();
    let said = Crossings::said(measured.experiment.name, here);
    said.map(|said| format!("\n{}\n", wrapped(&said, ""))).unwrap_or_default()
}
