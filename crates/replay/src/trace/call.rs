//! The system calls that a trace contains.

macro_rules! calls {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $libc:literal;)*) => {
        /// A system call that changes a program's memory, or reads its layout.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Call {
            $($(#[$doc])* $variant,)*
        }

        impl Call {
            /// Every call, in the order of the format's codes.
            pub const ALL: &[Call] = &[$(Call::$variant),*];

            /// The code of this call in a trace; codes never change their meaning.
            pub const fn code(self) -> u8 {
                match self { $(Call::$variant => $code,)* }
            }

            /// The call with this code.
            pub const fn from_code(code: u8) -> Option<Call> {
                match code { $($code => Some(Call::$variant),)* _ => None }
            }

            /// The name that Linux gives the call.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$variant => $name,)* }
            }

            /// The number of the call on x86-64 Linux.
            pub const fn x86_64(self) -> u64 {
                match self { $(Call::$variant => $libc,)* }
            }

            /// The call with this number on x86-64 Linux.
            pub const fn from_x86_64(number: u64) -> Option<Call> {
                match number { $($libc => Some(Call::$variant),)* _ => None }
            }
        }
    };
}

calls! {
    /// `mmap(addr, length, prot, flags, fd, offset)`
    Mmap = 0, "mmap", 9;
    /// `munmap(addr, length)`
    Munmap = 1, "munmap", 11;
    /// `mprotect(addr, length, prot)`
    Mprotect = 2, "mprotect", 10;
    /// `pkey_mprotect(addr, length, prot, pkey)`
    PkeyMprotect = 3, "pkey_mprotect", 329;
    /// `mremap(old, old_length, new_length, flags, new)`
    Mremap = 4, "mremap", 25;
    /// `madvise(addr, length, advice)`
    Madvise = 5, "madvise", 28;
    /// `process_madvise(pidfd, iovec, count, advice, flags)`
    ProcessMadvise = 6, "process_madvise", 440;
    /// `brk(addr)`, whose result is the new break
    Brk = 7, "brk", 12;
    /// `mlock(addr, length)`
    Mlock = 8, "mlock", 149;
    /// `mlock2(addr, length, flags)`
    Mlock2 = 9, "mlock2", 325;
    /// `munlock(addr, length)`
    Munlock = 10, "munlock", 150;
    /// `mlockall(flags)`
    Mlockall = 11, "mlockall", 151;
    /// `munlockall()`
    Munlockall = 12, "munlockall", 152;
    /// `msync(addr, length, flags)`
    Msync = 13, "msync", 26;
    /// `mincore(addr, length, vector)`
    Mincore = 14, "mincore", 27;
    /// `remap_file_pages(addr, size, prot, pgoff, flags)`
    RemapFilePages = 15, "remap_file_pages", 216;
    /// `shmat(id, addr, flags)`, whose result is the address
    Shmat = 16, "shmat", 30;
    /// `shmdt(addr)`
    Shmdt = 17, "shmdt", 67;
    /// `mbind(addr, length, mode, nodes, max_node, flags)`
    Mbind = 18, "mbind", 237;
    /// `set_mempolicy(mode, nodes, max_node)`
    SetMempolicy = 19, "set_mempolicy", 238;
    /// `migrate_pages(pid, max_node, old, new)`
    MigratePages = 20, "migrate_pages", 256;
    /// `move_pages(pid, count, pages, nodes, status, flags)`
    MovePages = 21, "move_pages", 279;
    /// `userfaultfd(flags)`
    Userfaultfd = 22, "userfaultfd", 323;
    /// `mseal(addr, length, flags)`
    Mseal = 23, "mseal", 462;
    /// `process_mrelease(pidfd, flags)`
    ProcessMrelease = 24, "process_mrelease", 448;
    /// `clone(flags, stack, parent_tid, child_tid, tls)`; the fork event before it says what came of it
    Clone = 25, "clone", 56;
    /// `clone3(args, size)`; the fork event before it has the flags
    Clone3 = 26, "clone3", 435;
    /// `fork()`
    Fork = 27, "fork", 57;
    /// `vfork()`; its duration contains the wait for the child's exec or exit
    Vfork = 28, "vfork", 58;
    /// `execve(path, argv, envp)`
    Execve = 29, "execve", 59;
    /// `execveat(dir, path, argv, envp, flags)`
    Execveat = 30, "execveat", 322;
    /// `ftruncate(fd, length)` that took pages from a file without a path
    Ftruncate = 31, "ftruncate", 77;
    /// `fallocate(fd, mode, offset, length)` that did
    Fallocate = 32, "fallocate", 285;
}

impl Call {
    /// Whether it may change which addresses are mapped, or how. Others read, fill or discard mapped pages.
    pub const fn changes_mappings(self) -> bool {
        let by_range = matches!(self, Call::Mmap | Call::Munmap | Call::Mprotect | Call::PkeyMprotect);
        let moves = matches!(self, Call::Mremap | Call::Brk | Call::RemapFilePages);
        by_range || moves || matches!(self, Call::Shmat | Call::Shmdt)
    }

    /// The number of its arguments.
    pub const fn arity(self) -> usize {
        match self {
            Call::Munlockall | Call::Fork | Call::Vfork => 0,
            Call::Brk | Call::Mlockall | Call::Shmdt | Call::Userfaultfd => 1,
            Call::Munmap | Call::Mlock | Call::Munlock | Call::ProcessMrelease | Call::Clone3 => 2,
            Call::Ftruncate => 2,
            Call::Mprotect | Call::Madvise | Call::Mlock2 | Call::Msync | Call::Mincore | Call::Shmat => 3,
            Call::SetMempolicy | Call::Mseal | Call::Execve => 3,
            Call::PkeyMprotect | Call::MigratePages | Call::Fallocate => 4,
            Call::Mremap | Call::ProcessMadvise | Call::RemapFilePages | Call::Clone | Call::Execveat => 5,
            Call::Mmap | Call::Mbind | Call::MovePages => 6,
        }
    }

    /// Whether it takes pages from a file.
    pub const fn cuts_file(self) -> bool {
        matches!(self, Call::Ftruncate | Call::Fallocate)
    }

    /// Whether it makes a process or a thread.
    pub const fn makes_task(self) -> bool {
        matches!(self, Call::Clone | Call::Clone3 | Call::Fork | Call::Vfork)
    }

    /// Whether it is `execve` or `execveat`.
    pub const fn is_exec(self) -> bool {
        matches!(self, Call::Execve | Call::Execveat)
    }
}
