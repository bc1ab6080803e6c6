//! Compares the modelled TLBs with the page tables while no verb is under way.
//!
//! A verb may change entries first and flush them before it returns. So the machine compares only when no
//! verb can be under way: at an access by the only thread that runs as a CPU, outside of handlers and without
//! locks; and when the last thread leaves. Fewer rights than the tables grant are fine (a fault takes care of
//! them), and so is an accessed bit that was cleared.

use std::sync::atomic::Ordering;

use quire::addr::{Frame, VirtAddr};
use quire::cpu::CpuId;
use quire::limits::FRAME_SIZE;

use super::fault::Access;
use super::layout::{self, Kind, PRESENT, Rights, leaf_frames};
use super::walk::Translation;
use crate::machine::{Hosted, Quiet};
use crate::tlb::{CpuTlb, Leaf, Table};
use crate::violation::Violation;

impl Hosted {
    /// Compares all cached translations of the CPUs with their page tables now. No verb may be under way. The
    /// machine does so by itself when the last thread that runs as a CPU leaves, but not every time if that
    /// is often.
    pub fn check_translations(&self) {
        self.all_violated(self.stale_translations());
    }

    fn stale_translations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.tlbs.each(|cpu, tlb| self.compare(cpu, tlb, &mut found));
        found
    }

    /// As [`Self::check_translations`], for a thread that has just left a quiet machine: if another one
    /// entered meanwhile, a difference may be a flush that it still owes.
    pub(crate) fn check_translations_at(&self, quiet: &Quiet) {
        let found = self.stale_translations();
        if self.is_still(quiet) {
            self.all_violated(found);
        }
    }

    /// Checks that the page table grants the access that `leaf` served, if every verb has returned.
    pub(super) fn check_served(&self, tlb: &CpuTlb, addr: u64, access: Access, leaf: Leaf) {
        let Some(root) = tlb.root().filter(|_| self.config.tlb_model) else { return };
        let Some(quiet) = self.quiet() else { return };
        let start = addr & !((1 << layout::shift(leaf.level)) - 1);
        let page = addr & !(FRAME_SIZE - 1);
        let cpu = self.this_cpu();
        let there = self.probe(root, VirtAddr(page));
        let violation = if !there.is_some_and(|there| grants(&there, page, start, leaf)) {
            stale(cpu, root, start, leaf, there)
        } else if access.writes() && there.is_some_and(|there| !there.dirty) {
            Violation::UnrecordedStore { cpu, root, addr }
        } else {
            return;
        };
        if self.is_still(&quiet) {
            self.violated(violation);
        }
    }

    fn compare(&self, cpu: CpuId, tlb: &CpuTlb, found: &mut Vec<Violation>) {
        let Some(root) = tlb.root() else { return };
        let (leaves, tables) = tlb.cached();
        found.extend(leaves.filter_map(|(addr, leaf)| self.compare_leaf(cpu, root, addr, leaf)));
        found.extend(tables.filter_map(|(addr, level, table)| {
            let there = self.table_at(root, addr, level);
            let same =
                there.is_some_and(|there| there.frame == table.frame && within(table.rights, there.rights));
            let there = there.map(|there| Frame(there.frame));
            let table = Frame(table.frame);
            (!same).then_some(Violation::StaleTable { cpu, root, addr, level, table, there })
        }));
    }

    /// Compares each page of a cached leaf; smaller leaves onto the same frames with the same rights are
    /// equal.
    fn compare_leaf(&self, cpu: CpuId, root: Frame, start: u64, leaf: Leaf) -> Option<Violation> {
        let mut done = 0;
        while done < leaf_frames(leaf.level) {
            let page = start + done * FRAME_SIZE;
            match self.probe(root, VirtAddr(page)) {
                Some(there) if grants(&there, page, start, leaf) => {
                    done = (there.addr.0.wrapping_sub(start) / FRAME_SIZE).wrapping_add(there.frames);
                }
                there => return Some(stale(cpu, root, start, leaf, there)),
            }
        }
        None
    }

    /// The table of `level` that translates `addr`, with the rights of the walk to it.
    fn table_at(&self, root: Frame, addr: u64, level: u32) -> Option<Table> {
        let mut table = Table { frame: root.0, rights: Rights::ALL };
        for above in (level + 1..=self.levels()).rev() {
            let slot = self.arena.table_entry(table.frame, layout::index(addr, above))?;
            let entry = slot.load(Ordering::Acquire);
            let Kind::Table(frame) = layout::decode(entry, above) else { return None };
            if entry & PRESENT == 0 {
                return None;
            }
            table = Table { frame, rights: table.rights.narrowed_by(entry) };
        }
        Some(table)
    }
}

/// Whether the entry `there` of `page` grants as much as a cached leaf from `start` on.
fn grants(there: &Translation, page: u64, start: u64, leaf: Leaf) -> bool {
    let rights = Rights { write: there.write, user: there.user, execute: there.exec };
    there.present
        && there.frame.0 + (page - there.addr.0) / FRAME_SIZE == leaf.frame + (page - start) / FRAME_SIZE
        && within(leaf.rights, rights)
}

/// Whether `granted` has every right that `cached` has.
fn within(cached: Rights, granted: Rights) -> bool {
    (granted.write || !cached.write) && (granted.user || !cached.user) && (granted.execute || !cached.execute)
}

fn stale(cpu: CpuId, root: Frame, addr: u64, leaf: Leaf, there: Option<Translation>) -> Violation {
    Violation::StaleTranslation {
        cpu,
        root,
        addr,
        size: 1 << layout::shift(leaf.level),
        first: Frame(leaf.frame),
        write: leaf.rights.write,
        there: there.map(|there| there.frame),
    }
}
