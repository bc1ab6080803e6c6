use hosted::HostedConfig;
use hosted::raw::RawMachine;
use quire::arch::{CpuFeatures, ReadyClear};
use quire::clear::ClearPolicy;
use quire::platform::FramePlatform;

use super::super::raw::Machines;
use super::*;

const CASE: Populating = Populating { page: 2 << 20, bytes: 8 << 20, threads: 1 };

/// Lets Quire's arm populate, from a pool or not, on a machine that clears memory, or one that only says so.
fn populate_on(clearing: bool, kind: Kind, rounds: usize) -> Vec<Sample> {
    let config = HostedConfig { clearing, ..HostedConfig::bench(Machines::bytes(&CASE)) };
    let machine = config.build().unwrap();
    let policy = ClearPolicy::suggested(CpuFeatures::detect(), machine.caches());
    let mut arm = Ours { kind, policy, cpus: vec![0], machines: Machines::with(machine) };
    let mut ready = arm.setup(&CASE).unwrap();
    (0..rounds).map(|_| ready.run().unwrap()).collect()
}

/// C6: no other arm has written to the memory.
#[test]
fn what_was_populated_is_zero_in_every_round() {
    for sample in [Kind::Anonymous, Kind::Pool].into_iter().flat_map(|kind| populate_on(true, kind, 2)) {
        assert_eq!((sample.checksum, sample.counters["pages"]), (2048, 4));
        let [cleared, out] = ["bytes_cleared", "bytes_handed_out"].map(|name| sample.counters[name]);
        assert!(out == 8 << 20 && (out..out + (1 << 20)).contains(&cleared), "{cleared} cleared for {out}");
    }
}

#[test]
#[should_panic(expected = "pages of 4 KiB that are zero")]
fn memory_that_nobody_cleared_is_no_sample() {
    populate_on(false, Kind::Anonymous, 1);
}

#[test]
fn one_word_of_a_page_that_is_not_zero_is_found() {
    let machine = HostedConfig::new(1 << 20).build().unwrap();
    machine.run_on(quire::cpu::CpuId(0), || {
        let all = FrameRange::new(quire::addr::Frame(0), 256);
        machine.clear_raw(all, ReadyClear::PLAIN);
        assert_eq!(zero_pages(&machine, all), 256);
        mark(&machine, all);
        assert_eq!(zero_pages(&machine, all), 256 - 4, "a mark for each 256 KiB");
    });
}
