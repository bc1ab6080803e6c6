//! What `khugepaged` and the splitter of underused folios change later on: a replay beside them, at their pace.

use std::fs;
use std::path::Path;

use anyhow::Result;
use quire::addr::Order;
use quire::vm::CollapseLimits;
use serde_json::{Map, Value, json};

use super::lines::labelled;
use super::words::{count, percent, size, time};
use crate::output::sparkline;
use crate::replay::{BackgroundPlan, BackgroundResult, FolioSet, Moment, Pace, STEPS, Trial};

const PAGE: u64 = 4096;
/// Pages of a table, of which one less may be missing.
const MOST_PTES: u64 = 511;

/// Every setting: its name, which is that of its file, Linux's value, and the least and the largest.
const KEYS: [(&str, u64, u64, u64); 6] = [
    ("max_ptes_none", MOST_PTES, 0, MOST_PTES),
    ("max_ptes_swap", 64, 0, MOST_PTES),
    ("max_ptes_shared", 256, 0, MOST_PTES),
    ("pages_to_scan", 4096, 1, u32::MAX as u64),
    // Linux allows 0, which means without a pause.
    ("scan_sleep_millisecs", 10_000, 1, u32::MAX as u64),
    (SPLITS, 1, 0, 1),
];
/// The setting that is not in the directory of khugepaged, but beside it.
const SPLITS: &str = "shrink_underused";

/// The settings of a machine, in the order of [`KEYS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Khugepaged([u64; KEYS.len()]);

/// What `--khugepaged` says: settings that differ from those of this machine, or that it stays out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Off,
    With(Vec<(usize, u64)>),
}

impl Asked {
    /// The settings that were asked for, by the names of their files.
    pub(crate) fn values(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Off => Vec::new(),
            Self::With(changes) => changes.iter().map(|&(at, value)| (KEYS[at].0, value)).collect(),
        }
    }
}

/// What khugepaged is predicted to change under a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collapses {
    /// Bytes that leaves of 2 MiB map at the end.
    pub(crate) huge_bytes: u64,
    /// Bytes by which the most resident memory of one process grows.
    pub(crate) more_bytes: i64,
}

/// Replays the trace beside khugepaged with these settings; those that were not asked for are the kernel's in
/// `root`.
///
/// # Errors
/// Of the replays.
pub(crate) fn predicted(trial: &Trial, root: &Path, asked: &Asked, set: FolioSet) -> Result<Collapses> {
    let Some(settings) = Khugepaged::read(root, Some(asked)).filter(|_| starts(set)) else {
        return Ok(Collapses::default());
    };
    let most =
        |behind: &BackgroundResult| behind.moments.iter().map(|moment| moment.largest).max().unwrap_or(0);
    let huge_bytes = |behind: &BackgroundResult| behind.moments.last().map_or(0, |moment| moment.huge) * PAGE;
    if settings.is_late_for(trial) {
        // It changes nothing then, and faults bring folios of 2 MiB all the same.
        let alone = trial.beside(settings.plan_without(set))?;
        return Ok(Collapses { huge_bytes: huge_bytes(&alone), more_bytes: 0 });
    }
    let (without, with) = settings.replayed(trial, set)?;
    let more_bytes = (most(&with) as i64 - most(&without) as i64) * PAGE as i64;
    Ok(Collapses { huge_bytes: huge_bytes(&with), more_bytes })
}

/// Whether Linux starts khugepaged for anonymous memory: where some of it may have folios of 2 MiB.
pub(crate) fn starts(set: FolioSet) -> bool {
    set.gives(Order::BLOCK, true)
}

/// Parses `off`, or settings as `max_ptes_none=64,scan_sleep_millisecs=100`.
pub(crate) fn parse(text: &str) -> Result<Asked, String> {
    if text == "off" {
        return Ok(Asked::Off);
    }
    let one = |text: &str| {
        let (name, value) =
            text.split_once('=').ok_or("write off, or NAME=NUMBER, several between commas")?;
        let at = KEYS.iter().position(|(key, ..)| *key == name.trim()).ok_or_else(|| {
            let names: Vec<&str> = KEYS.iter().map(|(key, ..)| *key).collect();
            format!("no such setting; choose {}", names.join(", "))
        })?;
        let (_, _, least, most) = KEYS[at];
        let value = value.trim().parse().ok().filter(|value| (least..=most).contains(value));
        Ok((at, value.ok_or_else(|| format!("{} is {least} to {most}", KEYS[at].0))?))
    };
    let changes: Vec<(usize, u64)> = text.split(',').map(one).collect::<Result<_, String>>()?;
    let mut named = [0; KEYS.len()];
    changes.iter().for_each(|(at, _)| named[*at] += 1);
    match named.iter().position(|times| *times > 1) {
        Some(at) => Err(format!("{} has two values", KEYS[at].0)),
        None => Ok(Asked::With(changes)),
    }
}

impl Khugepaged {
    /// Those of the kernel whose settings of folios are in `root`, with the changes that were asked for; `None` if it has no
    /// khugepaged and nothing was asked, or if it shall stay out.
    pub(super) fn read(root: &Path, asked: Option<&Asked>) -> Option<Self> {
        let folder = root.join("khugepaged");
        if asked == Some(&Asked::Off) || asked.is_none() && !folder.is_dir() {
            return None;
        }
        let mut values = KEYS.map(|(name, usual, least, most)| {
            let file = if name == SPLITS { root.join(name) } else { folder.join(name) };
            let found = fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
            found.unwrap_or(usual).clamp(least, most)
        });
        if let Some(Asked::With(changes)) = asked {
            changes.iter().for_each(|&(at, value)| values[at] = value);
        }
        Some(Self(values))
    }

    /// Nanoseconds from one scan to the next.
    fn sleep_ns(&self) -> u64 {
        self.0[4] * 1_000_000
    }

    /// The number of zero pages above which folios are split, if any are.
    fn splits_above(&self) -> Option<usize> {
        (self.0[5] == 1 && self.0[0] < MOST_PTES).then_some(self.0[0] as usize)
    }

    /// Whether the program ends before the first scan.
    fn is_late_for(&self, trial: &Trial) -> bool {
        trial.span_ns() <= self.sleep_ns() / 2
    }

    /// A replay of which memory is sampled, and no more.
    fn plan_without(&self, set: FolioSet) -> BackgroundPlan {
        let pace = Pace::Time { sleep_ns: self.sleep_ns(), pages: self.0[3], steps: STEPS };
        BackgroundPlan { set, collapse: None, split: None, pace }
    }

    /// Replays the trace under a set, without it and with it.
    fn replayed(&self, trial: &Trial, set: FolioSet) -> Result<(BackgroundResult, BackgroundResult)> {
        let without = self.plan_without(set);
        let with = BackgroundPlan { collapse: Some(self.limits()), split: self.splits_above(), ..without };
        Ok((trial.beside(without)?, trial.beside(with)?))
    }

    fn limits(&self) -> CollapseLimits {
        let [max_ptes_none, max_ptes_swap, max_ptes_shared, ..] = self.0.map(|value| value as usize);
        CollapseLimits { max_ptes_none, max_ptes_swap, max_ptes_shared }
    }
}

/// Replays of some sets, each without and with it.
pub(super) struct Beside {
    settings: Khugepaged,
    /// None if the program ended before the first scan.
    sets: Vec<(FolioSet, BackgroundResult, BackgroundResult)>,
    /// Those under which Linux does not start it.
    not_started: Vec<FolioSet>,
}

impl Beside {
    /// Replays the trace under those of these sets under which Linux starts it.
    ///
    /// # Errors
    /// Of the replays.
    pub(super) fn of(trial: &Trial, settings: Khugepaged, sets: &[FolioSet]) -> Result<Self> {
        let (started, not_started): (Vec<FolioSet>, _) = sets.iter().partition(|set| starts(**set));
        let mut all = Self { settings, sets: Vec::new(), not_started };
        if settings.is_late_for(trial) {
            return Ok(all);
        }
        for set in started {
            let (without, with) = settings.replayed(trial, set)?;
            all.sets.push((set, without, with));
        }
        Ok(all)
    }

    /// In words, under which sets Linux does not start it.
    fn left_out(&self) -> Option<String> {
        let names: Vec<String> = self.not_started.iter().map(|set| set.name()).collect();
        let starts = "Linux starts it only where some memory may have folios of 2M";
        (!names.is_empty()).then(|| format!("not under {}: {starts}", names.join(" and ")))
    }
}

/// The share of touched memory that leaves of 2 MiB map, over all samples.
fn covered(behind: &BackgroundResult) -> f64 {
    let sum = |of: fn(&Moment) -> u64| behind.moments.iter().map(of).sum::<u64>() as f64;
    sum(|moment| moment.large) / sum(|moment| moment.touched).max(1.0)
}

fn most(behind: &BackgroundResult, of: fn(&Moment) -> u64) -> String {
    size(behind.moments.iter().map(of).max().unwrap_or(0) * PAGE)
}

/// What it changes, for readers.
pub(super) fn text(beside: &Beside, trial: &Trial) -> String {
    let settings = &beside.settings;
    let sleep = time(settings.sleep_ns() as f64);
    let left_out = beside.left_out();
    if let Some(left_out) = left_out.as_ref().filter(|_| beside.sets.is_empty()) {
        return labelled("khugepaged:", left_out);
    }
    if beside.sets.is_empty() {
        let said = format!(
            "scans once in {sleep}, and the program ran {}: it comes too late (--khugepaged \
             scan_sleep_millisecs=1 shows what it could do)",
            time(trial.wall_ns() as f64)
        );
        return labelled("khugepaged:", &said);
    }
    let splits = match settings.splits_above() {
        Some(zeroes) => format!("folios with more than {zeroes} untouched pages of 512 are split again"),
        None => "no folio is split again".to_owned(),
    };
    let said =
        format!("{} pages in {sleep}, max_ptes_none {}; {splits}", count(settings.0[3]), settings.0[0]);
    let mut text = labelled("khugepaged:", &said);
    for (set, without, with) in &beside.sets {
        let first =
            with.first_ns.map_or_else(String::new, |ns| format!(", the first after {}", time(ns as f64)));
        let split = match with.split {
            0 => String::new(),
            split => format!(", {} split, which freed {}", count(split), size(with.freed * PAGE)),
        };
        let said = format!(
            "under {}: {} ranges collapsed{first}{split}; 2M leaves map {} → {} of touched memory on average; \
             private memory {} → {} at the most, untouched {} → {}",
            set.name(),
            count(with.collapsed),
            percent(covered(without)),
            percent(covered(with)),
            most(without, |moment| moment.resident),
            most(with, |moment| moment.resident),
            most(without, |moment| moment.resident - moment.touched),
            most(with, |moment| moment.resident - moment.touched),
        );
        text += &labelled("", &said);
        for (name, behind) in [("without", without), ("with", with)] {
            let shares =
                behind.moments.iter().map(|moment| moment.large as f64 / moment.touched.max(1) as f64);
            text += &format!("  {name:<8}{} of touched memory\n", sparkline(shares, 1.0));
        }
    }
    if let Some(left_out) = left_out {
        text += &labelled("", &left_out);
    }
    text + &labelled(
        "assumed:",
        "khugepaged scans this program alone, first half a sleep after its start, and collapses also where faults \
         bring smaller folios; pages without a store are zero; splits come as if memory were short",
    )
}

/// The same for programs.
pub(super) fn json(beside: &Beside) -> Value {
    let settings: Map<String, Value> = KEYS
        .iter()
        .zip(beside.settings.0)
        .map(|((name, ..), value)| ((*name).to_owned(), value.into()))
        .collect();
    let samples = |behind: &BackgroundResult| -> Vec<Value> {
        let bytes = |moment: &Moment| {
            json!({
                "resident": moment.resident * PAGE,
                "untouched": (moment.resident - moment.touched) * PAGE,
                "large": moment.large * PAGE,
            })
        };
        behind.moments.iter().map(bytes).collect()
    };
    let set = |(set, without, with): &(FolioSet, BackgroundResult, BackgroundResult)| {
        json!({
            "folio": set.name(),
            "scans": with.turns,
            "collapsed": with.collapsed,
            "split": with.split,
            "freed_bytes": with.freed * PAGE,
            "first_ns": with.first_ns,
            "without": samples(without),
            "with": samples(with),
        })
    };
    json!({ "settings": settings, "sets": beside.sets.iter().map(set).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_machine_unless_asked_otherwise() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(Khugepaged::read(root.path(), None), None);
        let defaults =
            Khugepaged::read(root.path(), Some(&Asked::With(Vec::new()))).expect("it was asked for");
        assert_eq!(defaults.0, [511, 64, 256, 4096, 10_000, 1]);
        assert_eq!(defaults.splits_above(), None, "at 511 Linux splits nothing");
        fs::create_dir(root.path().join("khugepaged")).expect("it is made");
        for (name, value) in [("max_ptes_none", "128\n"), ("scan_sleep_millisecs", "0\n")] {
            fs::write(root.path().join("khugepaged").join(name), value).expect("it is written");
        }
        let asked = parse("max_ptes_shared=0, pages_to_scan=512").expect("two settings");
        let read = Khugepaged::read(root.path(), Some(&asked)).expect("it is there");
        assert_eq!(read.0, [128, 64, 0, 512, 1, 1]);
        assert_eq!(read.splits_above(), Some(128));
        fs::write(root.path().join(SPLITS), "0\n").expect("it is written");
        assert_eq!(Khugepaged::read(root.path(), None).expect("it is there").splits_above(), None);
        assert_eq!(Khugepaged::read(root.path(), Some(&Asked::Off)), None);
    }

    /// Its folios of 2 MiB are those of its faults.
    #[test]
    fn a_program_that_ends_before_the_first_scan_has_leaves_of_2_mib() {
        let root = tempfile::tempdir().expect("a directory");
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/redis.qtrace");
        let trial = Trial::open(&trace, None).expect("a bundled trace");
        let under = |sleep: u64, name: &str| {
            let asked = parse(&format!("scan_sleep_millisecs={sleep},max_ptes_none=511")).expect("settings");
            let set = crate::replay::parse_set(name).expect("a set");
            predicted(&trial, root.path(), &asked, set).expect("it is replayed")
        };
        let late = under(10_000_000, "2M");
        assert!(late.huge_bytes >= 100 << 20 && late.more_bytes == 0, "{late:?}");
        assert!(under(1, "2M").huge_bytes >= late.huge_bytes);
        assert_eq!(under(10_000_000, "64K"), Collapses::default());
    }

    #[test]
    fn settings_that_linux_refuses_are_refused() {
        let twice = "pages_to_scan=1,max_ptes_none=1,pages_to_scan=2";
        for text in [
            "",
            "max_ptes_none",
            "max_ptes_none=512",
            "pages_to_scan=0",
            "pages=1",
            "off,max_ptes_none=1",
            twice,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
