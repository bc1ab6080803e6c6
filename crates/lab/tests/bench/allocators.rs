//! Small runs of single experiments around the page allocator. None changes a setting of the machine.

use lab::bench::published;
use lab::bench::row::Row;

/// The rows of a small run.
fn rows(arguments: &[&str]) -> Vec<Row> {
    let output = crate::output(&[&["--smoke", "--json", "-"], arguments].concat());
    assert!(output.status.success(), "{}", crate::text(&output.stderr));
    let rows = crate::rows(&crate::text(&output.stdout));
    rows.iter().for_each(crate::check);
    rows
}

#[test]
fn every_published_primitive_has_its_row() {
    let rows = rows(&["time-bench"]);
    let published = published::figures("pcp").unwrap();
    let published: Vec<_> = published.iter().filter(|figure| figure.source.contains("time_bench")).collect();
    assert!(!published.is_empty());
    for figure in published {
        let row = rows.iter().find(|row| row.case == figure.case && row.arm == "quire");
        let row = row.unwrap_or_else(|| panic!("{} is published and not measured", figure.case));
        assert_eq!(row.skipped.is_some(), row.case == "local_BH_disable_enable", "{}", row.case);
    }
}
