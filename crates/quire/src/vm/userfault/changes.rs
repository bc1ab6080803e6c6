//! Changes to address spaces that a handler has asked to read: the verb that made one waits until it was read.
//!
//! A change under the lock for writing (`fork`, `munmap`, `mremap`) is *announced* there, put in once the
//! verb has given its locks back, and read. From the first to the last no answer is given in the handler's
//! address spaces ([`UserfaultError::Again`](crate::error::UserfaultError::Again)): a handler about to copy a
//! page does not know yet that it is in another place, or in two. Nor is a fault read between the first and
//! the second, so that a handler reads of the change before it reads what came of it.
//!
//! What takes pages away, and leaves the range registered (`MADV_DONTNEED`, a file that is cut short or
//! punched), is read before it is done: nothing is known then that would have to be remembered meanwhile.
//!
//! A task that waits for a page of the range goes on, faults anew, and finds what is there now.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::context::{Change, Contexts, Posted};
use super::event::{UserfaultChanges, UserfaultEvent};
use super::registration::Registration;
use crate::addr::{VirtAddr, VirtRange};
use crate::filemap::FileNode;
use crate::limits::MAX_USERFAULTS;
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::rmap::reverse::FoundSpace;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::found::FoundBody;
use crate::vm::space::shared::MmShared;
use crate::vm::space::state::Space;
use crate::vm::tree::VmaList;

/// The handlers of some mappings, each once.
#[derive(Clone, Copy)]
pub(in crate::vm) struct Handlers([Registration; MAX_USERFAULTS]);

impl Handlers {
    /// Those of the mappings in a range.
    pub(super) fn of(space: &Space, range: VirtRange) -> Self {
        let mut all = [Registration::NONE; MAX_USERFAULTS];
        for vma in space.tree.overlapping(range) {
            let handler = vma.attributes.handler;
            // Of two that had the same number one is gone, and no task waits for it.
            if handler.is_some() && handler.generation >= all[usize::from(handler.number)].generation {
                all[usize::from(handler.number)] = handler;
            }
        }
        Self(all)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Registration> {
        self.0.into_iter().filter(|handler| handler.is_some())
    }
}

impl UserfaultEvent {
    /// Which kind of change it is.
    const fn change(&self) -> UserfaultChanges {
        match self {
            Self::Fault(_) => UserfaultChanges::NONE,
            Self::Fork { .. } => UserfaultChanges::FORK,
            Self::Remap { .. } => UserfaultChanges::REMAP,
            Self::Remove { .. } => UserfaultChanges::REMOVE,
            Self::Unmap { .. } => UserfaultChanges::UNMAP,
        }
    }
}

impl Contexts {
    /// Says that a change is under way, if the handler is there and wants to read such. Under the lock of an
    /// address space for writing; [`Self::tell`] follows.
    fn announce<P: Platform>(&self, platform: &P, registration: Registration, kind: UserfaultChanges) {
        let context = self.of(registration);
        if let Some(mut state) = context.lock_open(platform, registration)
            && state.wants.contains(kind)
        {
            context.announce(&mut state);
        }
    }

    /// Puts a change in and waits until it was read, the handler is gone, or the task is about to be killed.
    /// The caller holds no lock.
    fn tell<P: Platform>(
        &self,
        platform: &P,
        registration: Registration,
        event: UserfaultEvent,
        announced: bool,
    ) {
        loop {
            match self.put(platform, registration, event, announced) {
                Posted::Dead => return,
                Posted::Placed(waiting) => {
                    // It stays, and will be read, whether this task waits for that or not.
                    let _read = self.wait(platform, waiting);
                    return;
                }
                Posted::Full(waiting) => {
                    if self.wait(platform, waiting).is_err() {
                        self.call_off(platform, registration, event, announced);
                        return;
                    }
                }
            }
        }
    }

    fn put<P: Platform>(
        &self,
        platform: &P,
        registration: Registration,
        event: UserfaultEvent,
        announced: bool,
    ) -> Posted {
        let context = self.of(registration);
        let Some(mut state) = context.lock_open(platform, registration) else { return Posted::Dead };
        if !state.wants.contains(event.change()) {
            return Posted::Dead;
        }
        let Some(slot) = state.changes.iter().position(Option::is_none) else {
            return Posted::Full(context.wait_for_room(&mut state, registration.number));
        };
        let order = state.next();
        state.changes[slot] = Some(Change { order, event, announced });
        state.announced -= u32::from(announced);
        let rouse = context.arrive(&state);
        Posted::Placed(context.wait_for_reader(registration.number, slot, rouse))
    }

    fn call_off<P: Platform>(
        &self,
        platform: &P,
        registration: Registration,
        event: UserfaultEvent,
        announced: bool,
    ) {
        let context = self.of(registration);
        if let Some(mut state) = context.lock_open(platform, registration)
            && announced
            && state.wants.contains(event.change())
        {
            context.call_off(&mut state);
            let rouse = context.arrive(&state);
            drop(state);
            context.rouse(platform, rouse);
        }
    }
}

handle! {
    /// What an address space tells handlers of faults, and the waiting for them.
    Notices of AddressSpace
}

impl<P: Platform> Notices<'_, '_, P> {
    /// The mappings of the list are about to be unmapped. The lock is held for writing.
    pub(in crate::vm) fn announce_unmapped(self, gone: &VmaList) {
        self.announce_all(gone, UserfaultChanges::UNMAP);
    }

    /// The mappings of the list are about to move. The lock is held for writing.
    pub(in crate::vm) fn announce_moved(self, moved: &VmaList) {
        self.announce_all(moved, UserfaultChanges::REMAP);
    }

    fn announce_all(self, vmas: &VmaList, kind: UserfaultChanges) {
        let platform = self.memory.platform();
        for vma in vmas.iter().filter(|vma| vma.attributes.handler.is_some()) {
            self.memory.userfaults().announce(platform, vma.attributes.handler, kind);
        }
    }

    /// The address space is about to be forked; the handlers to tell of it. The lock is held for writing.
    pub(in crate::vm) fn announce_fork(self, space: &Space) -> Option<Handlers> {
        let handlers = space.handled.then(|| Handlers::of(space, space.layout.user))?;
        for handler in handlers.iter() {
            self.memory.userfaults().announce(self.memory.platform(), handler, UserfaultChanges::FORK);
        }
        Some(handlers)
    }

    /// The child is there, or not, after all. The caller holds no lock.
    pub(in crate::vm) fn tell_forked(self, handlers: &Handlers, child: Option<u64>) {
        let (platform, contexts) = (self.memory.platform(), self.memory.userfaults());
        for handler in handlers.iter() {
            let event = UserfaultEvent::Fork { parent: self.number(), child: child.unwrap_or(0) };
            match child {
                Some(_) => contexts.tell(platform, handler, event, true),
                None => contexts.call_off(platform, handler, event, true),
            }
        }
    }

    /// Discards mappings that were unmapped, of which those that have handlers were announced. Nodes that
    /// were left over when mappings became one have none. The caller holds no lock.
    pub(in crate::vm) fn discard_unmapped(self, gone: VmaList) {
        self.tell_all(&gone, |space, range| UserfaultEvent::Unmap { space, range });
        self.memory.discard_list(gone);
    }

    /// The same with mappings that were moved `by` bytes, wrapping.
    pub(in crate::vm) fn discard_moved(self, moved: VmaList, by: u64) {
        self.tell_all(&moved, |space, range| UserfaultEvent::Remap {
            space,
            from: range.start,
            to: VirtAddr(range.start.0.wrapping_add(by)),
            len: range.len(),
        });
        self.memory.discard_list(moved);
    }

    fn tell_all(self, vmas: &VmaList, event: impl Fn(u64, VirtRange) -> UserfaultEvent) {
        let (platform, contexts, space) = (self.memory.platform(), self.memory.userfaults(), self.number());
        for vma in vmas.iter().filter(|vma| vma.attributes.handler.is_some()) {
            contexts.answer(platform, vma.attributes.handler, space, vma.range);
            contexts.tell(platform, vma.attributes.handler, event(space, vma.range), true);
        }
    }

    /// The pages of a range are about to go, while the mappings stay. The caller holds no lock.
    pub(in crate::vm) fn tell_removed(self, range: VirtRange) {
        let (platform, contexts, number) = (self.memory.platform(), self.memory.userfaults(), self.number());
        let mut rest = range;
        loop {
            let space = self.space.read(platform);
            let next = space.tree.overlapping(rest).find(|vma| vma.attributes.handler.is_some());
            let Some((handler, part)) = next.map(|vma| (vma.attributes.handler, vma.range.intersect(rest)))
            else {
                return;
            };
            drop(space);
            let event = UserfaultEvent::Remove { space: number, range: part };
            contexts.tell(platform, handler, event, false);
            rest.start = part.end;
        }
    }
}

handle! {
    /// What handlers hear of files that they watch, and what a file has for them.
    FileNotices of MmShared
}

impl<P: Platform> FileNotices<'_, '_, P> {
    /// These pages of a file are about to go, or to be behind its end. The caller holds no lock.
    pub(in crate::vm) fn tell_file_removed(self, file: &FileNode, pages: &Range<u64>) {
        self.each_handled(file, pages, |space, handler, range| {
            let event = UserfaultEvent::Remove { space, range };
            self.userfaults().tell(self.platform(), handler, event, false);
        });
    }

    /// They are gone: a task that waits for one finds what is there now. The caller holds no lock.
    pub(in crate::vm) fn wake_file(self, file: &FileNode, pages: &Range<u64>) {
        self.each_handled(file, pages, |space, handler, range| {
            self.userfaults().answer(self.platform(), handler, space, range);
        });
    }

    /// Shows where some of these pages are mapped with a handler, and by which address space. Nothing is held
    /// then, nor is the address space kept.
    fn each_handled(
        self,
        file: &FileNode,
        pages: &Range<u64>,
        mut show: impl FnMut(u64, Registration, VirtRange),
    ) {
        let (mut number, mut last, mut after) = (0, 0, None);
        while let Some(body) = FoundBody::next(self.platform(), file, number, pages) {
            let found = body.mapper.number();
            after = after.filter(|_| last == found);
            last = found;
            let space = body.space.read(self.platform());
            let here = FoundSpace::new(self.0, &body, &space, file);
            let mut part = None;
            while let Some((place, vma, range)) = here.part_after(pages, after) {
                after = Some(place);
                if vma.attributes.handler.is_some() {
                    part = Some((vma.attributes.handler, range));
                    break;
                }
            }
            drop(space);
            drop(body);
            match part {
                Some((handler, range)) => {
                    show(found, handler, range);
                    // On with the same one, if it is still there.
                    number = found - 1;
                }
                None => number = found,
            }
        }
    }
}
