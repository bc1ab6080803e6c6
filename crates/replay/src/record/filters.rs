//! Filters of the tracepoints at a call's entry and exit, which the kernel evaluates at each call of the program.

use std::ops::RangeInclusive;

use super::abi;

/// Filters for entries and exits. They see only the number, so they match a number of any architecture; the parser
/// drops other calls.
pub(super) fn of_calls() -> (String, String) {
    let mut numbers: Vec<u64> = abi::native_numbers().chain(abi::i386_numbers()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let leave = any(&numbers);
    numbers.retain(|number| *number != abi::OLD_MMAP);
    (any(&numbers), leave)
}

/// One of these numbers, which ascend, or any of x32.
fn any(numbers: &[u64]) -> String {
    let ranges = numbers.chunk_by(|number, next| number + 1 == *next);
    let ends = |range: &[u64]| Some(*range.first()?..=*range.last()?);
    let ranges: Vec<_> = ranges.filter_map(ends).chain([abi::X32..=u64::MAX]).collect();
    search(&ranges)
}

/// Halves the ranges again and again: the kernel compares one number after the other, and a program makes many more
/// calls than those that are recorded.
fn search(ranges: &[RangeInclusive<u64>]) -> String {
    match ranges {
        [] => String::new(),
        [range] => match (*range.start(), *range.end()) {
            (first, last) if first == last => format!("id == {first}"),
            (first, u64::MAX) => format!("id >= {first}"),
            (first, last) => format!("(id >= {first} && id <= {last})"),
        },
        _ => {
            let (below, above) = ranges.split_at(ranges.len() / 2);
            let middle = above[0].start();
            format!("((id < {middle} && {}) || (id >= {middle} && {}))", search(below), search(above))
        }
    }
}

#[cfg(test)]
mod tests;
