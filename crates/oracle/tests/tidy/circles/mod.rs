//! No circle of imports joins files of different folders, and none inside a folder has more than four files. Files that
//! only declare modules and pass names on are followed through and are no part of a circle; tests are left out.

mod parse;
mod resolve;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::source::Source;
use parse::Modules;

/// How many files of one folder may be in a circle.
const FILES: usize = 4;

/// Circles that are there for now: the innermost folder that holds all files of one, and how many those are. A circle
/// may shrink, and leaves the list when it is gone or small enough.
pub(crate) const KNOWN: &[(&str, usize)] = &[];

/// The files that each file takes names from, with the names.
pub(crate) type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Complaints about the sources of all crates.
pub(crate) fn check(sources: &[Source], known: &[(&str, usize)]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test() && source.path.ends_with(".rs")) {
        if let Some((folder, _)) = source.path.split_once("/src/") {
            crates.entry(folder).or_default().push(source);
        }
    }
    let mut complaints = Vec::new();
    let mut seen = HashSet::new();
    for (folder, files) in crates {
        let folders: HashSet<&str> =
            files.iter().filter_map(|file| Some(file.path.rsplit_once('/')?.0)).collect();
        let arrows = arrows(folder, &files);
        for circle in circles(&arrows) {
            let rooms: BTreeSet<String> = circle.iter().map(|file| room(file, &folders)).collect();
            if rooms.len() == 1 && circle.len() <= FILES {
                continue;
            }
            let common = common(&rooms);
            seen.insert(common.clone());
            let allowed = known.iter().find(|(at, _)| *at == common).map_or(0, |&(_, files)| files);
            if circle.len() > allowed {
                complaints.push(describe(&common, &circle, &arrows));
            }
        }
    }
    let gone = known.iter().filter(|(at, _)| !seen.contains(*at));
    complaints
        .extend(gone.map(|(at, _)| format!("{at}: no circle any more, so it leaves the list of circles")));
    complaints
}

/// Which file takes names from which, in the crate at `folder`.
pub(crate) fn arrows(folder: &str, files: &[&Source]) -> Arrows {
    let mut modules = Modules::new();
    for (at, file) in files.iter().enumerate() {
        let below = file.path[folder.len() + "/src/".len()..].trim_end_matches(".rs");
        let mut place: Vec<String> = below.split('/').map(str::to_string).collect();
        let root = place.len() == 1 && ["lib", "main"].contains(&below);
        if root || place.last().is_some_and(|last| last == "mod") {
            place.pop();
        }
        // A program beside a library of the same package names that one as another crate.
        if below == "main" && files.iter().any(|file| file.path.ends_with("/src/lib.rs")) {
            continue;
        }
        let stream = file.text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.path));
        parse::parse(stream, at, &place, &mut modules);
    }
    let with_code: HashSet<usize> =
        modules.values().filter(|module| module.has_code).map(|module| module.file).collect();
    let mut arrows = Arrows::new();
    for (place, module) in modules.iter().filter(|(_, module)| with_code.contains(&module.file)) {
        for (target, name) in resolve::targets(place, &modules) {
            if target != module.file && with_code.contains(&target) {
                let from = arrows.entry(files[module.file].path.clone()).or_default();
                from.entry(files[target].path.clone()).or_default().insert(name);
            }
        }
    }
    arrows
}

/// Groups of at least two files each of which reaches all others of its group.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<&str>> {
    let reached: HashMap<&str, HashSet<&str>> =
        arrows.keys().map(|from| (from.as_str(), reach(from, arrows))).collect();
    let mut found: BTreeSet<BTreeSet<&str>> = BTreeSet::new();
    for (&from, far) in &reached {
        let back = |to: &&&str| reached.get(**to).is_some_and(|far| far.contains(from));
        let circle: BTreeSet<&str> = far.iter().filter(back).copied().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// The files that are reached from a file in one step or more.
fn reach<'a>(from: &str, arrows: &'a Arrows) -> HashSet<&'a str> {
    let mut reached = HashSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for next in arrows.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    reached
}

/// The folder that a file belongs to: `a/b.rs` belongs to `a/b` if there is such a folder, as `a/b/mod.rs` does.
fn room(file: &str, folders: &HashSet<&str>) -> String {
    let own = file.trim_end_matches(".rs");
    let inside = |folder: &&&str| **folder == own || folder.starts_with(&format!("{own}/"));
    match folders.iter().find(inside) {
        Some(_) => own.to_string(),
        None => file.rsplit_once('/').map_or("", |(folder, _)| folder).to_string(),
    }
}

/// The innermost folder that holds all of these.
fn common(rooms: &BTreeSet<String>) -> String {
    let first: Vec<&str> = rooms.iter().next().map_or(Vec::new(), |room| room.split('/').collect());
    let shared = |length: &usize| {
        let start = first[..*length].join("/");
        rooms.iter().all(|room| *room == start || room.starts_with(&format!("{start}/")))
    };
    let length = (0..=first.len()).rev().find(shared).unwrap_or(0);
    first[..length].join("/")
}

/// The circle, and each arrow in it with the names that make it.
fn describe(common: &str, circle: &BTreeSet<&str>, arrows: &Arrows) -> String {
    let mut text = format!("{common}: a circle of {} files", circle.len());
    for file in circle {
        let inside = arrows[*file].iter().filter(|(to, _)| circle.contains(to.as_str()));
        for (to, names) in inside {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            text += &format!("\n    {file} -> {to}: {}", names.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod broken;
