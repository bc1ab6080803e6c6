//! `brk`.

use super::vma::{Backing, Huge, Locked, PAGE, Prot, Vma};
use super::{Family, Space, SpaceId};

impl Family {
    /// Sets the start of the heap; it is then empty.
    pub fn set_brk_start(&mut self, id: SpaceId, addr: u64) {
        self.space_mut(id).brk = (addr, addr);
    }

    /// Moves the end of the heap; returns the new end. It stays where it is if the call fails: below the
    /// start, within a page of the next mapping, or if part of the memory that it would leave is not mapped.
    pub fn brk(&mut self, id: SpaceId, addr: u64) -> u64 {
        let rules = self.rules;
        let space = self.space_mut(id);
        let (start, now) = space.brk;
        if addr < start || addr > rules.user_end {
            return now;
        }
        let (old, new) = (now.next_multiple_of(PAGE), addr.next_multiple_of(PAGE));
        if new < old {
            if !space.any_in(new, old) {
                return now;
            }
            space.remove(new, old);
        } else if new > old {
            let above = space.vmas.get(space.index_above(old));
            let limit = above.map(|vma| if vma.grows_down { vma.start - rules.stack_gap } else { vma.start });
            if new > rules.user_end || limit.is_some_and(|limit| new + PAGE > limit) {
                return now;
            }
            let locked = space.lock_future;
            space.insert(heap(old, new, locked));
            if locked == Locked::Now {
                let _ = self.populate(id, old, new);
            }
        }
        self.space_mut(id).brk.1 = addr;
        addr
    }
}

impl Space {
    /// The end of the heap.
    pub fn brk_end(&self) -> u64 {
        self.brk.1
    }
}

fn heap(start: u64, end: u64, locked: Locked) -> Vma {
    Vma {
        start,
        end,
        prot: Prot::Rw,
        shared: false,
        backing: Backing::Anonymous,
        page_offset: 0,
        grows_down: false,
        locked,
        huge: Huge::Default,
        accounted: false,
    }
}
