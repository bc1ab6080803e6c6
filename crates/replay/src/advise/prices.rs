//! What Linux pays for a fault, by kind and by folio size.
//!
//! All kinds of faults cost what was recorded: how long one takes depends on what the program does to the caches between them.
//! Where `quire calibrate --kernel` measured what the recording itself adds, on the machine of the recording, they cost less by it.
//! A folio of zeroes above 4 KiB costs what `quire calibrate --kernel` measured it to take longer on this machine; without that,
//! the clearing of its further memory. In a program that was recorded on another machine, faults that bring in folios of zeroes
//! cost what was measured here alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quire::vm::FaultKind;

use crate::calibrate::{self, FaultSpread, Found, KernelPrices};
use crate::replay::{Figures, order_name};
use crate::trace::Header;

/// Orders with a price: 4 KiB to 2 MiB.
pub(super) const ORDERS: usize = 10;

/// The order that Linux gives no anonymous memory, so that no fault of it can be measured: folios of 8 KiB.
const NEVER: usize = 1;

const KINDS: usize = FaultKind::NAMES.len();

/// Nanoseconds of a fault by kind where the trace has none: an ordinary user cannot record durations.
const USUAL_NS: [f64; KINDS] = [500.0, 800.0, 1000.0, 500.0, 700.0, 100_000.0, 0.0];

/// The prices of one trace.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// Nanoseconds by kind; of the anonymous ones those of 4 KiB.
    kinds: [f64; KINDS],
    /// Nanoseconds of a fault that brings in a folio of zeroes, by order.
    pub(super) folios: [f64; ORDERS],
    /// Nanoseconds that such a fault takes less if its memory was freed a moment ago, beyond what one of a page does.
    recycled: [f64; ORDERS],
    /// Nanoseconds of a walk through the page tables, if they were measured with the others.
    pub(super) walk_ns: Option<f64>,
    /// Nanoseconds that a recorded time is too long, by kind; those above lack them already.
    recorder: [f64; KINDS],
    /// Nanoseconds that the recorded faults took, without those, by kind.
    recorded: [Option<f64>; KINDS],
    /// How long a fault takes by the time since the last one: what a replay tells of its gaps, a part of that of all.
    by_gap: Vec<f64>,
    /// How far single faults of a folio size are apart, by order, if that was measured with the others.
    pub(super) spreads: BTreeMap<u8, FaultSpread>,
    pub(super) source: Source,
}

/// The origin of the prices of folios.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// This machine was measured; `recorded` if 4 KiB cost the recorded time of the program on it.
    Measured { file: PathBuf, recorded: bool },
    /// 4 KiB cost the recorded nanoseconds, or usual ones; each further 4 KiB cost those of clearing them.
    Assumed { recorded: bool, first_ns: f64, further_ns: f64, why: String },
}

impl Prices {
    /// Those for the trace with this header that `frames` replays with single frames; `file` has measured ones of this machine.
    ///
    /// # Errors
    /// A file that was asked for and cannot be used; no memory to measure in.
    pub(crate) fn of(frames: &Figures, header: &Header, file: Option<&Path>) -> anyhow::Result<Self> {
        Self::with(calibrate::kernel_prices(file)?, frames, header)
    }

    /// The same of a program that runs right behind another one: of its memory the host of a virtual machine has taken none.
    ///
    /// # Errors
    /// As [`Prices::of`].
    pub(crate) fn behind_another(
        frames: &Figures,
        header: &Header,
        file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let found = calibrate::kernel_prices(file)?;
        Self::with(found.map(|(path, measured)| (path, measured.of_memory_in_use())), frames, header)
    }

    fn with(found: Result<Found, String>, frames: &Figures, header: &Header) -> anyhow::Result<Self> {
        let recorded = |kind: usize| recorded(frames, kind);
        let kinds = std::array::from_fn(|kind| recorded(kind).unwrap_or(USUAL_NS[kind]));
        let anon = FaultKind::Anon as usize;
        Ok(match found {
            Ok((path, measured)) => {
                // How long clearing takes may have to be measured, which takes longer than many a replay.
                let is_complete = has_every_size(&KernelPrices::by_order(&measured.fault_ns));
                let further_ns = if is_complete { 0.0 } else { calibrate::clearing_ns_per_frame()? };
                let here = measured.are_of(&header.kernel, &header.cpu);
                let recorder =
                    FaultKind::NAMES.map(|kind| if here { measured.of_recorder(kind) } else { 0.0 });
                let recorded = |kind: usize| Some((recorded(kind)? - recorder[kind]).max(0.0));
                let kinds = std::array::from_fn(|kind| recorded(kind).unwrap_or(USUAL_NS[kind]));
                let recorded = std::array::from_fn(recorded);
                let of_a_page = recorded[anon].filter(|_| here);
                let by_gap = frames.gaps.parts.clone();
                let measured = Self::measured(kinds, &measured, further_ns, of_a_page, path);
                Self { recorder, recorded, by_gap, ..measured }
            }
            Err(why) => {
                let further_ns = calibrate::clearing_ns_per_frame()?;
                let of_kind = recorded;
                let (first_ns, recorded) = (kinds[anon], recorded(anon).is_some());
                let folios = std::array::from_fn(|order| first_ns + further(order, 0) * further_ns);
                Self {
                    kinds,
                    folios,
                    recycled: [0.0; ORDERS],
                    walk_ns: None,
                    recorder: [0.0; KINDS],
                    recorded: std::array::from_fn(of_kind),
                    by_gap: frames.gaps.parts.clone(),
                    spreads: BTreeMap::new(),
                    source: Source::Assumed { recorded, first_ns, further_ns, why },
                }
            }
        })
    }

    /// `of_a_page` is the recorded time of a fault of 4 KiB on this machine.
    fn measured(
        mut kinds: [f64; KINDS],
        measured: &KernelPrices,
        further_ns: f64,
        of_a_page: Option<f64>,
        file: PathBuf,
    ) -> Self {
        let by_order = KernelPrices::by_order(&measured.fault_ns);
        let usual = (0, USUAL_NS[FaultKind::Anon as usize]);
        let mut folios: [f64; ORDERS] = std::array::from_fn(|order| {
            // A size that this kernel lacks costs the next smaller one, and the clearing of the rest.
            let below =
                by_order.range(..=order as u8).next_back().map(|(order, ns)| (usize::from(*order), *ns));
            let (known, ns) = below.unwrap_or(usual);
            ns + further(order, known) * further_ns
        });
        if let (Some(page), Some(larger)) = (by_order.get(&0), by_order.get(&(NEVER as u8 + 1))) {
            folios[NEVER] = page + (larger - page) * further(NEVER, 0) / further(NEVER + 1, 0);
        }
        let first = of_a_page.unwrap_or(folios[0]);
        let folios = folios.map(|ns| first + (ns - folios[0]).max(0.0));
        let just_freed = KernelPrices::by_order(&measured.recycled_ns);
        let recycled =
            std::array::from_fn(|order| match (just_freed.get(&0), just_freed.get(&(order as u8))) {
                (Some(page), Some(ns)) => (folios[order] - folios[0] - (ns - page).max(0.0)).max(0.0),
                _ => 0.0,
            });
        kinds[FaultKind::Anon as usize] = first;
        let spreads = KernelPrices::by_order(&measured.fault_spread);
        let source = Source::Measured { file, recorded: of_a_page.is_some() };
        let (recorder, recorded, by_gap) = ([0.0; KINDS], [None; KINDS], Vec::new());
        let walk_ns = measured.walk_ns;
        Self { kinds, folios, recycled, walk_ns, recorder, recorded, by_gap, spreads, source }
    }

    /// Nanoseconds of a fault that brings in a single page of zeroes.
    pub(crate) const fn of_a_page(&self) -> f64 {
        self.folios[0]
    }

    /// Nanoseconds of a fault of no kind above, from its recorded time.
    pub(crate) fn without_recorder(&self, recorded_ns: u64) -> f64 {
        (recorded_ns as f64 - self.recorder[FaultKind::Anon as usize]).max(0.0)
    }

    /// Those of the faults of a replay. A larger folio saves the faults that follow another one in its memory. Those that are
    /// left take longer than the mean of all: they were the first after the program has done something else, and the one before
    /// them is farther away now.
    pub(crate) fn under(&self, figures: &Figures) -> Self {
        let mut prices = self.clone();
        let anon = FaultKind::Anon as usize;
        for kind in 0..KINDS {
            let (Some(all), Some(left)) = (self.recorded[kind], recorded(figures, kind)) else { continue };
            if all > 0.0 {
                prices.kinds[kind] *= (left - self.recorder[kind]).max(0.0) / all;
            }
            prices.kinds[kind] += figures.gaps.longer(kind, &self.by_gap) * self.kinds[anon];
        }
        let longer = prices.kinds[anon] - self.kinds[anon];
        prices.folios = std::array::from_fn(|order| {
            let frames = (figures.folios[order] << order).max(1);
            let recycled = (figures.recycled[order] as f64 / frames as f64).min(1.0);
            self.folios[order] + longer - recycled * self.recycled[order]
        });
        prices
    }

    /// Nanoseconds of a fault that copies a page.
    pub(super) const fn of_a_copy(&self) -> f64 {
        self.kinds[FaultKind::Cow as usize]
    }

    /// Nanoseconds of a fault that brings in a folio of 2 MiB.
    pub(crate) const fn of_blocks(&self) -> f64 {
        self.folios[9]
    }

    /// Whether this machine was measured.
    pub(crate) const fn are_measured(&self) -> bool {
        matches!(self.source, Source::Measured { .. })
    }

    /// Faults by kind and by order: how many, and nanoseconds of one, with their names.
    pub(crate) fn parts(&self, kinds: &[u64; KINDS], folios: &[u64; ORDERS]) -> BTreeMap<String, (u64, f64)> {
        let anon = FaultKind::Anon as usize;
        let of_kinds = (0..KINDS).filter(|&kind| kind != anon);
        let of_kinds =
            of_kinds.map(|kind| (FaultKind::NAMES[kind].to_owned(), (kinds[kind], self.kinds[kind])));
        let of_folios = folios.iter().zip(self.folios).zip(0u8..);
        let of_folios =
            of_folios.map(|((count, ns), order)| (format!("anon-{}", order_name(order)), (*count, ns)));
        of_kinds.chain(of_folios).filter(|(_, (count, _))| *count > 0).collect()
    }

    /// Nanoseconds of faults, by kind and by order.
    pub(crate) fn sum(&self, kinds: &[u64; KINDS], folios: &[u64; ORDERS]) -> f64 {
        let others = (0..KINDS).filter(|&kind| kind != FaultKind::Anon as usize);
        let of_kinds: f64 = others.map(|kind| kinds[kind] as f64 * self.kinds[kind]).sum();
        let of_folios: f64 = folios.iter().zip(self.folios).map(|(count, ns)| *count as f64 * ns).sum();
        of_kinds + of_folios
    }

    /// Nanoseconds of the longest fault that brings memory in.
    pub(super) fn longest(&self, figures: &Figures) -> f64 {
        let folios = figures.folios.iter().zip(self.folios).filter(|(count, _)| **count > 0);
        let copies =
            (figures.kinds[FaultKind::Cow as usize] > 0).then_some(self.kinds[FaultKind::Cow as usize]);
        folios.map(|(_, ns)| ns).chain(copies).fold(0.0, f64::max)
    }

    /// What was measured of single faults of the sizes that a replay had, by order.
    pub(super) fn spreads_of(&self, figures: &Figures) -> impl Iterator<Item = (u8, FaultSpread)> {
        let spreads = self.spreads.iter().map(|(order, spread)| (*order, *spread));
        spreads.filter(|(order, _)| figures.folios.get(usize::from(*order)).is_some_and(|count| *count > 0))
    }

    /// Nanoseconds by kind and by folio size, with their names.
    pub(super) fn named(&self) -> BTreeMap<String, f64> {
        let kinds = (0..KINDS).filter(|&kind| kind != FaultKind::Anon as usize);
        let kinds = kinds.map(|kind| (FaultKind::NAMES[kind].to_owned(), self.kinds[kind]));
        let orders = (0..ORDERS).filter(|order| *order != NEVER);
        let folios = orders.map(|order| (format!("anon-{}", order_name(order as u8)), self.folios[order]));
        kinds.chain(folios).collect()
    }
}

/// Nanoseconds of the recorded faults that a replay took as this kind.
fn recorded(figures: &Figures, kind: usize) -> Option<f64> {
    figures.recorded_ns.get(FaultKind::NAMES[kind]).map(|ns| *ns as f64)
}

/// Whether each size that there is was measured, so that none costs the clearing of its further memory.
fn has_every_size(by_order: &BTreeMap<u8, f64>) -> bool {
    (0..ORDERS).all(|order| order == NEVER || by_order.contains_key(&(order as u8)))
}

/// The frames of an order beyond those of another.
fn further(order: usize, than: usize) -> f64 {
    ((1u64 << order) - (1u64 << than)) as f64
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::replay::{FolioSet, Trial};

    #[test]
    fn a_program_of_this_machine_pays_its_recorded_price_and_what_larger_folios_take_longer() {
        let fault_ns = [(4, 500.0), (16, 700.0), (2048, 50_500.0)].into();
        let measured = KernelPrices::of_this_machine(fault_ns, BTreeMap::new(), None);
        let kinds = [900.0; KINDS];
        let own = Prices::measured(kinds, &measured, 100.0, Some(900.0), PathBuf::new());
        assert_eq!((own.folios[0], own.folios[2], own.folios[9]), (900.0, 1100.0, 50_900.0));
        assert_eq!(
            own.folios[3], 1500.0,
            "one that was not measured: the next smaller, and clearing four pages"
        );
        let other = Prices::measured(kinds, &measured, 100.0, None, PathBuf::new());
        assert_eq!((other.folios[0], other.folios[2], other.folios[9]), (500.0, 700.0, 50_500.0));
        assert_eq!((other.kinds[FaultKind::Anon as usize], other.of_a_copy()), (500.0, 900.0));
    }

    /// Advice on a small recording spent most of its time with a measurement that nothing used.
    #[test]
    fn where_every_size_was_measured_clearing_is_not() {
        let of = |sizes: &[u64]| sizes.iter().map(|kib| (*kib, 500.0 + *kib as f64 * 25.0)).collect();
        let all: BTreeMap<u64, f64> = of(&[4, 16, 32, 64, 128, 256, 512, 1024, 2048]);
        assert!(has_every_size(&KernelPrices::by_order(&all)));
        assert!(!has_every_size(&KernelPrices::by_order(&of(&[4, 64, 2048]))));
        let measured = KernelPrices::of_this_machine(all, BTreeMap::new(), None);
        let prices = Prices::measured([900.0; KINDS], &measured, 0.0, None, PathBuf::new());
        let straight: [f64; ORDERS] = std::array::from_fn(|order| 500.0 + (4 << order) as f64 * 25.0);
        assert_eq!(prices.folios, straight, "that of 8 KiB is between its neighbours");
    }

    #[test]
    fn a_folio_of_memory_that_was_just_freed_is_cheaper() {
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/sqlite.qtrace");
        let replayed =
            Trial::open(&trace, None).unwrap().replay(&[FolioSet::FRAMES.and(4)]).unwrap().0.remove(0);
        let order = |order: usize, count: u64| std::array::from_fn(|of| if of == order { count } else { 0 });
        // Of four folios of 64 KiB one.
        let figures = Figures { folios: order(4, 4), recycled: order(4, 16), ..replayed };
        let prices = |recycled_ns: &[(u64, f64)]| {
            let measured =
                KernelPrices::of_this_machine([(4, 500.0), (64, 9500.0)].into(), BTreeMap::new(), None)
                    .with_recycled(recycled_ns.iter().copied().collect());
            let all = Prices::measured([900.0; KINDS], &measured, 100.0, None, PathBuf::new());
            all.under(&figures).folios[4]
        };
        assert_eq!(prices(&[]), 9500.0, "how long such ones take is not known");
        assert_eq!(prices(&[(4, 300.0), (64, 1300.0)]), 9500.0 - (9000.0 - 1000.0) / 4.0);
        assert_eq!(prices(&[(4, 300.0), (64, 99_000.0)]), 9500.0, "they take no longer");
    }

    #[test]
    fn what_a_recording_adds_is_no_price() {
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/gcc.qtrace");
        let trial = Trial::open(&trace, None).unwrap();
        let frames = trial.replay(&[FolioSet::FRAMES]).unwrap().0.remove(0);
        let header = Header { cpu: "a processor".into(), ..trial.header().clone() };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("prices.json");
        let prices = |recorder: &str, cpu: &str| {
            let text = json!({ "version": 1, "kernel": header.kernel, "cpu": cpu, "fault_ns": { "4": 500.0, "64": 9500.0 },
                "recorder_ns": serde_json::from_str::<Value>(recorder).unwrap() });
            std::fs::write(&file, text.to_string()).unwrap();
            Prices::of(&frames, &header, Some(&file)).unwrap()
        };
        let (before, after) =
            (prices("{}", &header.cpu), prices(r#"{"anon":100.0,"file-minor":150.0}"#, &header.cpu));
        let apart = |kind: FaultKind| before.kinds[kind as usize] - after.kinds[kind as usize];
        let kinds = [FaultKind::Anon, FaultKind::FileMinor, FaultKind::Cow];
        assert_eq!(kinds.map(apart), [100.0, 150.0, 100.0]);
        assert_eq!(after.of_a_page(), before.of_a_page() - 100.0);
        assert_eq!(
            after.folios[4] - after.folios[0],
            9000.0,
            "what a larger folio takes longer is not recorded"
        );
        assert_eq!((after.without_recorder(700), before.without_recorder(700)), (600.0, 700.0));
        let elsewhere = prices(r#"{"anon":100.0}"#, "another");
        assert_eq!(elsewhere.kinds[FaultKind::Cow as usize], before.kinds[FaultKind::Cow as usize]);
    }

    /// The host has taken the blocks that a program finds which is started alone.
    #[test]
    fn a_program_behind_another_one_does_not_wait_for_the_host() {
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/gcc.qtrace");
        let trial = Trial::open(&trace, None).unwrap();
        let frames = trial.replay(&[FolioSet::FRAMES]).unwrap().0.remove(0);
        let file = tempfile::NamedTempFile::new().unwrap();
        let faults = [(4, 500.0), (1024, 1e5), (2048, 2.7e6)].into();
        let prices = KernelPrices::of_this_machine(faults, BTreeMap::new(), None);
        let prices = prices.with_blocks_in_use(Some(2e5));
        std::fs::write(file.path(), prices.bytes().unwrap()).unwrap();
        let alone = Prices::of(&frames, trial.header(), Some(file.path())).unwrap();
        let behind = Prices::behind_another(&frames, trial.header(), Some(file.path())).unwrap();
        assert!((alone.of_blocks() - behind.of_blocks() - 2.5e6).abs() < 1.0, "{alone:?} {behind:?}");
        assert_eq!((alone.folios[0], alone.folios[8]), (behind.folios[0], behind.folios[8]), "smaller ones");
    }

    #[test]
    fn the_parts_of_the_time_make_it_up() {
        let measured =
            KernelPrices::of_this_machine([(4, 500.0), (64, 9500.0)].into(), BTreeMap::new(), None);
        let prices = Prices::measured([900.0; KINDS], &measured, 100.0, None, PathBuf::new());
        let (mut kinds, mut folios) = ([0; KINDS], [0; ORDERS]);
        (kinds[FaultKind::Anon as usize], kinds[FaultKind::Cow as usize]) = (5, 7);
        (folios[0], folios[4]) = (2, 3);
        let parts = prices.parts(&kinds, &folios);
        let all = [("anon-4K", (2, 500.0)), ("anon-64K", (3, 9500.0)), (FaultKind::Cow.name(), (7, 900.0))];
        assert_eq!(parts, all.map(|(name, part)| (name.to_owned(), part)).into());
        let sum: f64 = parts.values().map(|(count, ns)| *count as f64 * ns).sum();
        assert_eq!(sum, prices.sum(&kinds, &folios));
    }

    #[test]
    fn faults_that_larger_folios_leave_take_longer() {
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/sqlite.qtrace");
        let trial = Trial::open(&trace, None).unwrap();
        let replayed = trial.replay(&[FolioSet::FRAMES, FolioSet::FRAMES.and(4)]).unwrap().0;
        let kinds = replayed[0].recorded_ns.clone();
        let measured = KernelPrices::of_this_machine([(4, 500.0)].into(), BTreeMap::new(), None);
        let of = |kind: &str| kinds.get(kind).map_or(900.0, |ns| *ns as f64);
        let own = Prices {
            recorded: FaultKind::NAMES.map(|kind| kinds.get(kind).map(|ns| *ns as f64)),
            by_gap: replayed[0].gaps.parts.clone(),
            ..Prices::measured(FaultKind::NAMES.map(of), &measured, 100.0, Some(of("anon")), PathBuf::new())
        };
        let [frames, large] = [0, 1].map(|set: usize| own.under(&replayed[set]));
        let apart =
            (frames.of_a_page() - own.of_a_page()).abs() + (frames.of_a_copy() - own.of_a_copy()).abs();
        assert!(apart < 1.0, "one fault is missing, that Quire does not take: {apart}");
        let longer = large.of_a_page() / own.of_a_page();
        assert!((1.02..2.0).contains(&longer), "{longer}");
        let near = Prices { by_gap: Vec::new(), ..own.clone() }.under(&replayed[1]).of_a_page();
        assert!(large.of_a_page() > near * 1.01, "they are farther apart: {} {near}", large.of_a_page());
        let further = |prices: &Prices| prices.folios[4] - prices.folios[0];
        assert!((further(&large) - further(&own)).abs() < 1e-6, "clearing takes as long");
    }
}
