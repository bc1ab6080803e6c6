//! A comparison: five small plots with the ratio in large type, the cases that are lost, and every figure.

use anyhow::{Result, bail};
use maud::{Markup, html};

use super::page::Section;
use super::plot::{self, Mark, Ratios};
use crate::bench::row::Row;
use crate::bench::table::distinct;
use crate::compare::{Group, Line, Lost, factor, groups, kernel_of, lines, lost, shown};

/// The section of the figures of one run.
///
/// # Errors
/// Figures of none of the five systems.
pub(super) fn section(rows: &[Row]) -> Result<Section> {
    let smoke = rows.iter().any(|row| row.params.get("smoke").is_some_and(|value| value == true));
    let measured = |group: &Group| rows.iter().any(|row| row.experiment == group.experiment.name);
    let mut groups: Vec<Group> = groups("")?.into_iter().filter(measured).collect();
    for group in &mut groups {
        let has =
            |case: &str| rows.iter().any(|row| row.experiment == group.experiment.name && row.case == case);
        group.works.retain(|work| has(work.case_at(smoke)));
    }
    let lines = lines(&groups, smoke, rows)?;
    if lines.is_empty() {
        bail!("none of its cases is of the five systems: write it with `quire compare --json`");
    }
    let lost = lost(&groups, rows);
    let kernel = rows.first().map(|row| kernel_of(&row.machine)).unwrap_or_default();
    let systems = distinct(lines.iter().map(|line| line.work.system));
    let cards =
        systems.into_iter().map(|system| card(system, &lines, &kernel)).collect::<Result<Vec<_>>>()?;
    let body = html! {
        p.soft { (machine(rows)) }
        p {
            span.key.circle.one { (kernel) " takes so many times as long" }
            span.key.triangle.two { "the fastest published design or crate does" }
            span.key.cross.three { "what the published change gained on the kernel of its time" }
        }
        @if smoke { p { "A smoke run: it shows that everything works; its figures say little." } }
        div.cards { @for card in &cards { (card) } }
        (losses(&lost))
        (all(&lines, &kernel))
    };
    Ok(Section { title: "Quire beside this machine's kernel".to_owned(), body })
}

fn card(system: &str, lines: &[Line<'_>], kernel: &str) -> Result<Markup> {
    let lines: Vec<&Line<'_>> = lines.iter().filter(|line| line.work.system == system).collect();
    let rows: Vec<Ratios> = lines
        .iter()
        .map(|line| {
            let marks = [
                (Mark::Cross, line.published.as_ref().map(|(times, _)| *times)),
                (Mark::Triangle, line.over_other()),
                (Mark::Circle, line.over_kernel()),
            ];
            let marks = marks.into_iter().filter_map(|(mark, value)| Some((mark, value?))).collect();
            Ratios { name: line.work.what.to_owned(), marks }
        })
        .collect();
    // The work in which the kernel comes closest: no better one is picked. Without a kernel's figure, the closest rival.
    let worst = |of: fn(&Line<'_>) -> Option<f64>| {
        let all = lines.iter().filter_map(|line| Some((of(line)?, line.work.what)));
        all.min_by(|one, other| one.0.total_cmp(&other.0))
    };
    let over_kernel = worst(|line| line.over_kernel());
    let (large, beside) = match over_kernel {
        Some(found) => (Some(found), kernel.to_owned()),
        None => (worst(|line| line.over_other()), "the best other".to_owned()),
    };
    let told = lines.iter().map(|line| sentence(line, kernel)).collect::<Vec<_>>().join(" ");
    let plot = plot::ratios(&rows, "times as long as Quire", &told)?;
    Ok(html! {
        div.card {
            h2 { (system) }
            @if let Some((times, what)) = large {
                div class=(if times < 1.0 { "ratio loses" } else { "ratio" }) { (factor(times)) "×" }
                div.soft { "as fast as " (beside) ", in the work where that is least: " (what) }
            }
            (plot)
        }
    })
}

/// A line in words, for readers who do not see the plot.
fn sentence(line: &Line<'_>, kernel: &str) -> String {
    let beside = |name: &str, row: Option<&Row>, times: Option<f64>| {
        let times = times.map_or_else(String::new, |times| format!(" ({} times)", factor(times)));
        row.map(|row| format!("{name} {}{times}", shown(row)))
    };
    let own = line.own.map(|row| format!("Quire {}", shown(row)));
    let other = line.other.map_or("", |row| row.arm.as_str());
    let kernel = beside(kernel, line.kernel, line.over_kernel());
    let parts = [own, kernel, beside(other, line.other, line.over_other())];
    format!("{}: {}.", line.work.what, parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn losses(lost: &[Lost<'_>]) -> Markup {
    html! {
        h2 { "Cases that Quire loses" }
        @if lost.is_empty() { p { "No measured case." } } @else {
            div.scroll { table {
                thead { tr { th { "case" } th { "Quire" } th.word { "faster" } th { "takes" } th { "times as long" } } }
                tbody { @for case in lost { tr {
                    td { (case.experiment) " " (case.case) }
                    td { (shown(case.own)) }
                    td.word { (case.best.arm) }
                    td { (shown(case.best)) }
                    td { (factor(case.slower)) }
                } } }
            } }
        }
    }
}

fn all(lines: &[Line<'_>], kernel: &str) -> Markup {
    let over = |times: Option<f64>| times.map(factor).unwrap_or_default();
    html! {
        h2 { "Every figure" }
        div.scroll { table {
            thead { tr {
                th { "work" } th { "Quire" } th { (kernel) } th { "times" } th { "best other" } th { "times" }
                th.word { "it is" } th { "published gain" } th.word { "by" }
            } }
            tbody { @for line in lines { tr {
                td { (line.work.system) ", " (line.work.what) }
                td { (line.own.map(shown).unwrap_or_default()) }
                td { (line.kernel.map(shown).unwrap_or_default()) }
                td { (over(line.over_kernel())) }
                td { (line.other.map(shown).unwrap_or_default()) }
                td { (over(line.over_other())) }
                td.word { (line.other.map_or("", |row| row.arm.as_str())) }
                td { (line.published.as_ref().map(|(times, _)| factor(*times)).unwrap_or_default()) }
                td.word { (line.published.as_ref().map_or("", |(_, source)| source.as_str())) }
            } } }
        } }
        p.soft {
            "Medians. Each work was done by every arm in turn in one run. The published gain is that of the published \
             change over the kernel of its time, on another machine."
        }
        @for (more, systems) in more(lines) {
            p.soft { "The kernel's figures contain " (more) " as well: " (systems) "." }
        }
    }
}

/// What the kernel's figures contain beyond the work, and in which systems.
fn more(lines: &[Line<'_>]) -> Vec<(&'static str, String)> {
    let with = || lines.iter().filter(|line| line.kernel.is_some() && !line.work.more.is_empty());
    let systems = |more: &str| {
        distinct(with().filter(|line| line.work.more == more).map(|line| line.work.system)).join("; ")
    };
    distinct(with().map(|line| line.work.more)).into_iter().map(|more| (more, systems(more))).collect()
}

/// The machine and the commit, and how quiet it was.
fn machine(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let word = |name: &str| first.machine[name].as_str().unwrap_or("unknown").to_owned();
    let share = |name: &str| {
        let all = rows.iter().filter_map(|row| row.machine[name].as_f64());
        format!("{:.1} %", all.fold(0.0, f64::max) * 100.0)
    };
    format!(
        "{}, {} CPUs, Linux {}, built from {}. Other processes had up to {} of the CPU time, the host of the machine {}.",
        word("cpu"),
        first.machine["cpus"],
        word("kernel"),
        first.commit,
        share("cpu_of_others"),
        share("cpu_stolen")
    )
}
