//! Changes to address spaces that a handler reads: the verb that makes one waits until a handler thread read
//! it.
//!
//! A verb that changes mappings under the lock for writing (`fork`, `munmap`, `mremap`) *announces* the
//! change there, and enters it once it has given its locks back; a handler thread reads it. From announcement
//! to reading no answer is given in the handler's address spaces
//! ([`UserfaultError::Again`](crate::error::UserfaultError::Again)): a handler about to copy a page does not
//! know yet that the page has moved, or is in two places. From announcement to entry no fault is read, so
//! that a handler reads the change before the faults that it caused.
//!
//! A verb that takes pages away, now or later, and leaves the range registered (`MADV_DONTNEED`, `MADV_FREE`,
//! a file that is cut short or punched), enters its change before it acts, so there is nothing to announce.
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

/// The handlers of mappings, each once.
#[derive(Clone, Copy)]
pub(in crate::vm) struct Handlers([Registration; MAX_USERFAULTS]);

impl Handlers {
    pub(super) fn of(space: &Space, range: VirtRange) -> Self {
        let mut all = [Registration::NONE; MAX_USERFAULTS];
        for vma in space.tree.overlapping(range) {
            let handler = vma.attributes.handler;
            // Of two with the same number the older has closed, and no task waits for it.
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
    /// Announces a change, if the handler is open and wants to read such. The caller holds an address space's
    /// lock for writing; [`Self::tell`] follows.
    fn announce<P: Platform>(&self, platform: &P, registration: Registration, kind: UserfaultChanges) {
        let context = self.of(registration);
        if let Some(mut state) = context.lock_open(platform, registration)
            && state.wants.contains(kind)
        {
            context.announce(&mut state);
        }
    }

    /// Enters a change and waits until it was read, the handler has closed, or the task is being killed. The
    /// caller holds no lock.
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
                    // The change will be read even if this task cannot wait for that.
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
    /// Tells an address space's handlers of faults and changes, and waits for them.
    Notices of AddressSpace
}

impl<P: Platform> Notices<'_, '_, P> {
    /// The caller holds the lock for writing.
    pub(in crate::vm) fn announce_unmapped(self, gone: &VmaList) {
        self.announce_all(gone, UserfaultChanges::UNMAP);
    }

    /// The caller holds the lock for writing.
    pub(in crate::vm) fn announce_moved(self, moved: &VmaList) {
        self.announce_all(moved, UserfaultChanges::REMAP);
    }

    fn announce_all(self, vmas: &VmaList, kind: UserfaultChanges) {
        let platform = self.memory.platform();
        for vma in vmas.iter().filter(|vma| vma.attributes.handler.is_some()) {
            self.memory.userfaults().announce(platform, vma.attributes.handler, kind);
        }
    }

    /// Announces a fork; returns the handlers to tell of it. The caller holds the lock for writing.
    pub(in crate::vm) fn announce_fork(self, space: &Space) -> Option<Handlers> {
        let handlers = space.handled.then(|| Handlers::of(space, space.layout.user))?;
        for handler in handlers.iter() {
            self.memory.userfaults().announce(self.memory.platform(), handler, UserfaultChanges::FORK);
        }
        Some(handlers)
    }

    /// Tells of the child, or calls the fork off if there is none. The caller holds no lock.
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

    /// Tells handlers of unmapped mappings that were announced, and discards them. (Nodes left over from a
    /// merge have no handler.) The caller holds no lock.
    pub(in crate::vm) fn discard_unmapped(self, gone: VmaList) {
        self.tell_all(&gone, |space, range| UserfaultEvent::Unmap { space, range });
        self.memory.discard_list(gone);
    }

    /// Does the same for mappings that were moved `by` bytes, wrapping.
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

    /// Tells handlers that the range's pages, not its mappings, are about to go. The caller holds no lock.
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
    /// Tells handlers of changes to the files behind their ranges, and looks up the files' pages.
    FileNotices of MmShared
}

impl<P: Platform> FileNotices<'_, '_, P> {
    /// Tells handlers that pages of a file are about to go, or to lie behind its end. The caller holds no
    /// lock.
    pub(in crate::vm) fn tell_file_removed(self, file: &FileNode, pages: &Range<u64>) {
        self.each_handled(file, pages, |space, handler, range| {
            let event = UserfaultEvent::Remove { space, range };
            self.userfaults().tell(self.platform(), handler, event, false);
        });
    }

    /// Wakes the tasks that wait for these pages, once they are gone. The caller holds no lock.
    pub(in crate::vm) fn wake_file(self, file: &FileNode, pages: &Range<u64>) {
        self.each_handled(file, pages, |space, handler, range| {
            self.userfaults().answer(self.platform(), handler, space, range);
        });
    }

    /// Shows where these pages are mapped with a handler, and in which address space. While `show` runs no
    /// lock is held, and the address space may end.
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
                    // Go on with the same address space, if it is still there.
                    number = found - 1;
                }
                None => number = found,
            }
        }
    }
}
