//! A calibration as tables: one row for each extent, one column for each kernel, chosen kernels marked.

use std::fmt::Write;

use quire::arch::{Caches, ClearKernel, CopyKernel, CpuFeatures};
use quire::clear::{CLASSES, Calibration, ClearPolicy, Cost, STRETCHES, THREADS, bytes_of, cpus_of};
use quire::platform::TouchHint;

use super::KernelPrices;
use crate::output::{Sheet, duration};

/// All measurements, and the policy that follows.
pub(super) fn text(calibration: &Calibration, features: CpuFeatures) -> String {
    let policy = calibration.policy(features);
    let caches = Caches::detect();
    let mut text = format!(
        "features: {features:?}\ncaches: {} KiB, {} KiB, {} KiB; stretches of {} KiB\n",
        caches.first >> 10,
        caches.second >> 10,
        caches.last >> 10,
        calibration.stretch.bytes() >> 10
    );
    let lacking = ClearKernel::ALL.into_iter().filter_map(|kernel| kernel.on(features).err());
    for error in lacking {
        let _ = writeln!(text, "{error}");
    }
    let _ = writeln!(
        text,
        "GiB/s of all threads together; in parentheses with one read of the memory afterwards. Chosen: s \
         when the memory is used soon, l when later, u without a hint."
    );
    for threads in 0..THREADS {
        let clear = sheet(
            &calibration.clear[threads],
            threads,
            ClearKernel::ALL.map(ClearKernel::name),
            |class, kernel| chosen(|hint| policy.clear[hint as usize][threads][class] as usize == kernel),
        );
        let copy = sheet(
            &calibration.copy[threads],
            threads,
            CopyKernel::ALL.map(CopyKernel::name),
            |class, kernel| chosen(|hint| policy.copy[hint as usize][threads][class] as usize == kernel),
        );
        for (verb, sheet) in [("clear", clear), ("copy", copy)] {
            if let Some(sheet) = sheet {
                let _ = writeln!(text, "{verb}, {} threads\n{sheet}", cpus_of(threads));
            }
        }
    }
    if let Some(sheet) = stretches(calibration, &policy) {
        let _ = writeln!(
            text,
            "stretches between reschedule points, of large extents: GiB/s of all threads together, microseconds of one; the chosen one is marked\n{sheet}"
        );
    }
    let _ = write!(text, "{}", policy_text(&policy));
    text
}

/// What Linux takes for a fault, by folio size.
pub(super) fn prices(prices: &KernelPrices) -> String {
    let header = ["folio", "fault", "each 4 KiB of it", "just freed", "median", "99 %", "longest"];
    let header = header.map(str::to_owned);
    let mut sheet = Sheet::new(&header, 1);
    for (kib, ns) in &prices.fault_ns {
        let recycled = prices.recycled_ns.get(kib).map_or_else(String::new, |ns| duration(*ns));
        let mut cells = vec![extent(kib << 10), duration(*ns), duration(ns * 4.0 / *kib as f64), recycled];
        cells.extend(
            prices
                .fault_spread
                .get(kib)
                .iter()
                .flat_map(|spread| [spread.median_ns, spread.p99_ns, spread.longest_ns].map(duration)),
        );
        sheet.add_row(cells);
    }
    let walk = prices.walk_ns.map_or_else(String::new, |ns| {
        format!("an access that misses the TLBs takes {} longer\n", duration(ns))
    });
    let in_use = prices.blocks_in_use_ns.map_or_else(String::new, |ns| {
        format!("2 MiB that the host of the virtual machine has not taken back: {}\n", duration(ns))
    });
    let recorder = prices.recorder_ns.iter().map(|(kind, ns)| format!("{} ({kind})", duration(*ns)));
    let recorder = match recorder.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        each => format!("a fault takes longer in a recording by {each}\n"),
    };
    format!(
        "faults of this machine's Linux that bring in folios of zeroes\n{sheet}\n{in_use}{walk}{recorder}"
    )
}

/// A row for each stretch length, a column for each number of threads; `None` if nothing was measured.
fn stretches(calibration: &Calibration, policy: &ClearPolicy) -> Option<Sheet> {
    let measured: Vec<usize> =
        (0..THREADS).filter(|&threads| calibration.stretches[threads].iter().any(|&cost| cost > 0)).collect();
    let header: Vec<String> = std::iter::once("stretch".to_owned())
        .chain(measured.iter().map(|&threads| format!("{} threads", cpus_of(threads))))
        .collect();
    let mut sheet = Sheet::new(&header, 1);
    for (at, stretch) in STRETCHES.into_iter().enumerate() {
        let mark = if stretch == policy.stretch { "* " } else { "" };
        let mut cells = vec![format!("{mark}{stretch}")];
        cells.extend(measured.iter().map(|&threads| {
            let ns_per_mib = calibration.stretches[threads][at];
            let micros = f64::from(ns_per_mib) * stretch.bytes() as f64 / f64::from(1 << 20) / 1e3;
            format!("{:.1} {micros:5.1}us", rate(threads, u64::from(ns_per_mib)))
        }));
        sheet.add_row(cells);
    }
    (!measured.is_empty()).then_some(sheet)
}

/// GiB/s of all threads together when each takes so many nanoseconds for a MiB.
fn rate(threads: usize, ns_per_mib: u64) -> f64 {
    cpus_of(threads) as f64 * 1e9 / 1024.0 / ns_per_mib.max(1) as f64
}

/// The policy as text, under a heading.
pub(super) fn policy_text(policy: &ClearPolicy) -> String {
    format!(
        "policy (stretch between reschedule points; verb, hint, threads: kernel from which extent on)\n{policy}"
    )
}

/// The letters of the hints under which the kernel is chosen.
fn chosen(by: impl Fn(TouchHint) -> bool) -> String {
    TouchHint::ALL.into_iter().filter(|&hint| by(hint)).map(|hint| &hint.name()[..1]).collect()
}

/// The table for one number of threads; `None` if nothing was measured.
fn sheet<const N: usize>(
    measured: &[[Cost; CLASSES]; N],
    threads: usize,
    names: [&str; N],
    marks: impl Fn(usize, usize) -> String,
) -> Option<Sheet> {
    let measured_kernels: Vec<usize> =
        (0..N).filter(|&kernel| measured[kernel].iter().any(|cost| cost.is_known())).collect();
    let known = |class: usize| measured_kernels.iter().any(|&kernel| measured[kernel][class].is_known());
    let header: Vec<String> = std::iter::once("extent".to_owned())
        .chain(measured_kernels.iter().map(|&kernel| names[kernel].to_owned()))
        .collect();
    let mut sheet = Sheet::new(&header, 1);
    for class in (0..CLASSES).filter(|&class| known(class)) {
        let mut cells = vec![extent(bytes_of(class))];
        cells.extend(measured_kernels.iter().map(|&kernel| {
            let cost = measured[kernel][class];
            let (fill, both) = (u64::from(cost.fill), u64::from(cost.fill) + u64::from(cost.read));
            let figure = format!("{:.1} ({:.1})", rate(threads, fill), rate(threads, both));
            format!("{:>3} {figure}", marks(class, kernel))
        }));
        sheet.add_row(cells);
    }
    // Where not all columns fit, the chosen ones stay.
    let is_chosen =
        |kernel: usize| (0..CLASSES).any(|class| known(class) && !marks(class, kernel).is_empty());
    sheet.prefer(
        (1..).zip(&measured_kernels).filter(|(_, kernel)| is_chosen(**kernel)).map(|(column, _)| column),
    );
    (!measured_kernels.is_empty()).then_some(sheet)
}

/// `4KiB`, `2MiB`, `1GiB`.
pub(super) fn extent(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 30 => format!("{}GiB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{}MiB", bytes >> 20),
        bytes => format!("{}KiB", bytes >> 10),
    }
}
