//! The kept list of bugs: drawn by a seed from all places, more often where tests are weaker.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::build;
use crate::copy::{self, Sources};
use crate::operators::{Class, Operator, Place};

/// Path from the repository's root.
pub(crate) const LIST: &str = "crates/mutants/list.json";
/// Additional bugs to compile, since the compiler refuses some.
const SPARE: usize = 10;
/// The most bugs of one function, so that none dominates.
const OF_A_FUNCTION: usize = 2;

/// One bug, found again by its text when lines have moved.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct Mutant {
    pub(crate) number: u32,
    pub(crate) file: String,
    /// Its line when it was drawn.
    pub(crate) line: usize,
    pub(crate) function: String,
    pub(crate) operator: Operator,
    pub(crate) class: Class,
    pub(crate) original: String,
    pub(crate) mutated: String,
    /// Its index among equal ones in the function, from 0.
    pub(crate) nth: usize,
    /// Why no test can or need find it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) explained: Option<String>,
    /// Why the code means the same with it: it is no bug, and is neither run nor counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) equivalent: Option<String>,
}

/// What distinguishes bugs, except for their index among equal ones.
type Likeness = (String, String, Operator, String, String);

impl Mutant {
    fn likeness(&self) -> Likeness {
        let texts = (self.original.clone(), self.mutated.clone());
        (self.file.clone(), self.function.clone(), self.operator, texts.0, texts.1)
    }

    /// The same in any file.
    fn anywhere(&self) -> Likeness {
        let (_, function, operator, original, mutated) = self.likeness();
        (String::new(), function, operator, original, mutated)
    }

    /// The key of a result, independent of the number.
    pub(crate) fn key(&self) -> String {
        let (file, function, nth) = (&self.file, &self.function, self.nth);
        format!("{file} {function} {nth} {:?} {} => {}", self.operator, self.original, self.mutated)
    }

    pub(crate) fn is_bug(&self) -> bool {
        self.equivalent.is_none()
    }

    /// The part of the library, as the table names it.
    pub(crate) fn module(&self) -> String {
        module(&self.file)
    }
}

fn module(file: &str) -> String {
    let below = file.trim_start_matches("crates/quire/src/");
    let parts: Vec<&str> = below.split('/').collect();
    match parts.as_slice() {
        ["vm", part @ ("collapse" | "userfault" | "fault"), _] => format!("vm/{part}"),
        [single] => single.trim_end_matches(".rs").to_string(),
        [first, ..] => first.to_string(),
        [] => String::new(),
    }
}

/// The weight of a part in the draw.
fn weight_of(module: &str) -> f64 {
    match module {
        "hugetlb" | "tlb" | "vm/collapse" | "vm/userfault" => 2.0,
        "pgtable" | "page_alloc" | "vmemmap" => 1.5,
        "vm" | "vm/fault" | "filemap" | "memmap" => 1.2,
        _ => 0.3,
    }
}

/// The list.
#[derive(Serialize, Deserialize)]
pub(crate) struct List {
    pub(crate) seed: u64,
    /// The number of places.
    pub(crate) places: usize,
    /// Places without a switch since they are constants.
    pub(crate) constant: usize,
    /// Places in statistics and hints.
    pub(crate) unseen: usize,
    pub(crate) mutants: Vec<Mutant>,
}

impl List {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(root.join(LIST)).with_context(|| format!("{LIST}: draw it with `list`"))?;
        Ok(serde_json::from_str(&text)?)
    }

    fn write(&self, root: &Path) -> Result<()> {
        Ok(fs::write(root.join(LIST), serde_json::to_string_pretty(self)? + "\n")?)
    }
}

/// The current places of the listed bugs: in their own file, or, if code was moved, in the only file with the
/// same text in a function of the same name. Bugs whose text is gone, or lies in another listed bug, are left
/// out.
pub(crate) fn locate(sources: &Sources, list: &[Mutant]) -> Vec<(Mutant, Place)> {
    let mut at: HashMap<(Likeness, usize), Place> = HashMap::new();
    let mut anywhere: HashMap<(Likeness, usize), Vec<(String, Place)>> = HashMap::new();
    for (mutant, place) in candidates(sources) {
        let moved = anywhere.entry((mutant.anywhere(), mutant.nth)).or_default();
        moved.push((mutant.file.clone(), place.clone()));
        at.insert((mutant.likeness(), mutant.nth), place);
    }
    let found = list.iter().filter_map(|mutant| {
        if let Some(place) = at.get(&(mutant.likeness(), mutant.nth)) {
            return Some((mutant.clone(), place.clone()));
        }
        let [(file, place)] = anywhere.get(&(mutant.anywhere(), mutant.nth))?.as_slice() else { return None };
        Some((Mutant { file: file.clone(), ..mutant.clone() }, place.clone()))
    });
    let mut taken = Taken::default();
    found.filter(|drawn| taken.take(drawn)).collect()
}

/// Every place of every file, without a number.
fn candidates(sources: &Sources) -> Vec<(Mutant, Place)> {
    let mut alike: HashMap<Likeness, usize> = HashMap::new();
    let mut all = Vec::new();
    for (file, text, found) in &sources.files {
        for place in &found.places {
            let mut mutant = Mutant {
                number: 0,
                file: file.clone(),
                line: place.line,
                function: place.function.clone(),
                operator: place.operator,
                class: place.class,
                original: text[place.range.clone()].to_string(),
                mutated: place.mutated.clone(),
                nth: 0,
                explained: None,
                equivalent: None,
            };
            let count = alike.entry(mutant.likeness()).or_default();
            mutant.nth = *count;
            *count += 1;
            all.push((mutant, place.clone()));
        }
    }
    all
}

/// Draws places until `count` bugs compile, and writes the list. Bugs of the old list stay as long as their
/// places exist, unless all are drawn `anew`.
pub(crate) fn draw(root: &Path, count: usize, seed: u64, anew: bool) -> Result<()> {
    let sources = Sources::read(root)?;
    let before = if anew { Vec::new() } else { List::read(root)?.mutants };
    let all = candidates(&sources);
    let places = all.len();
    let mut taken = Taken::default();
    let mut chosen = locate(&sources, &before);
    chosen.iter().for_each(|drawn| assert!(taken.take(drawn), "located bugs leave each other room"));
    let old = chosen.len();
    let mut waiting = order(all, seed).into_iter();
    let bugs = |chosen: &[(Mutant, Place)]| chosen.iter().filter(|(mutant, _)| mutant.is_bug()).count();
    loop {
        let wanted = (count + count / SPARE).saturating_sub(bugs(&chosen));
        chosen.extend(waiting.by_ref().filter(|drawn| taken.take(drawn)).take(wanted));
        number(&mut chosen);
        let refused = build::refused(&copy::write(root, &sources, &chosen)?)?;
        eprintln!("{} places, {} refused by the compiler", chosen.len(), refused.len());
        chosen.retain(|(mutant, _)| !refused.contains(&mutant.number));
        if refused.is_empty() && bugs(&chosen) >= count {
            break;
        }
        if refused.is_empty() && waiting.len() == 0 {
            bail!("there are only {} places", chosen.len());
        }
    }
    let more = bugs(&chosen) - count;
    chosen.truncate((chosen.len() - more).max(old));
    number(&mut chosen);
    let (constant, unseen) = (sources.count(|found| found.constant), sources.count(|found| found.unseen));
    let mutants = chosen.into_iter().map(|(mutant, _)| mutant).collect();
    List { seed, places, constant, unseen, mutants }.write(root)
}

fn number(chosen: &mut [(Mutant, Place)]) {
    (1..).zip(chosen).for_each(|(number, (mutant, _))| mutant.number = number);
}

/// All places in a random order, weighted: each kind of bug in each part of the library weighs the root of
/// its frequency, so that rare ones are not lost among the others.
fn order(all: Vec<(Mutant, Place)>, seed: u64) -> Vec<(Mutant, Place)> {
    let mut strata: BTreeMap<(String, Class), usize> = BTreeMap::new();
    for (mutant, _) in &all {
        *strata.entry((mutant.module(), mutant.class)).or_default() += 1;
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let keyed = all.into_iter().map(|drawn| {
        let module = drawn.0.module();
        let weight = weight_of(&module) * drawn.0.class.weight();
        let weight = weight / (strata[&(module, drawn.0.class)] as f64).sqrt();
        (random.f64().powf(weight.recip()), drawn)
    });
    let mut keyed: Vec<_> = keyed.collect();
    keyed.sort_by(|one, other| other.0.total_cmp(&one.0));
    keyed.into_iter().map(|(_, drawn)| drawn).collect()
}

/// The drawn places: none inside another, and not too many in one function.
#[derive(Default)]
struct Taken {
    ranges: HashMap<String, Vec<std::ops::Range<usize>>>,
    functions: HashMap<(String, String), usize>,
    texts: HashSet<(String, String, String)>,
}

impl Taken {
    fn take(&mut self, (mutant, place): &(Mutant, Place)) -> bool {
        let function = (mutant.file.clone(), mutant.function.clone());
        let of_it = self.functions.entry(function).or_default();
        let ranges = self.ranges.entry(mutant.file.clone()).or_default();
        let free =
            ranges.iter().all(|range| range.end <= place.range.start || range.start >= place.range.end);
        let text = (mutant.file.clone(), mutant.original.clone(), mutant.mutated.clone());
        if !free || *of_it >= OF_A_FUNCTION || !self.texts.insert(text) {
            return false;
        }
        *of_it += 1;
        ranges.push(place.range.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::find;

    fn sources() -> Sources {
        let text = "fn f() { flush(); charge(1); if a < b { g(); } }\nfn h() { x == y; }\n";
        let files = ["tlb/a.rs", "hugetlb/b.rs", "vm/fault/c.rs"];
        let files = files.map(|name| format!("crates/quire/src/{name}"));
        Sources { files: files.map(|name| (name, text.into(), find(text).expect("Rust"))).into() }
    }

    fn drawn(seed: u64) -> Vec<String> {
        let mut taken = Taken::default();
        let all = order(candidates(&sources()), seed);
        all.into_iter().filter(|drawn| taken.take(drawn)).map(|(mutant, _)| mutant.key()).collect()
    }

    #[test]
    fn a_seed_draws_the_same_bugs_again() {
        assert_eq!(drawn(3), drawn(3));
        assert_ne!(drawn(3), drawn(4));
        assert_eq!(candidates(&sources())[0].0.module(), "tlb");
        assert_eq!(module("crates/quire/src/vm/fault/c.rs"), "vm/fault");
        assert_eq!(module("crates/quire/src/avl.rs"), "avl");
    }

    #[test]
    fn bugs_that_have_come_to_stand_in_each_other_are_left_out() {
        let all: Vec<Mutant> = candidates(&sources()).into_iter().map(|(mutant, _)| mutant).collect();
        let located = locate(&sources(), &all);
        assert!(located.len() < all.len());
        for (mutant, place) in &located {
            let inside = |(other, at): &&(Mutant, Place)| {
                other.file == mutant.file
                    && at.range.start < place.range.end
                    && place.range.start < at.range.end
            };
            assert_eq!(located.iter().filter(inside).count(), 1);
        }
    }

    #[test]
    fn no_two_bugs_stand_in_each_other_and_no_function_has_many() {
        let drawn = drawn(1);
        for file in ["tlb/a.rs f ", "hugetlb/b.rs f ", "vm/fault/c.rs f "] {
            assert_eq!(drawn.iter().filter(|key| key.contains(file)).count(), OF_A_FUNCTION);
        }
    }
}
