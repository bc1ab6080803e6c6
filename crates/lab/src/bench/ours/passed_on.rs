//! The calls that every platform around the bare machine passes on unchanged.

/// The methods of [`quire::platform::FramePlatform`] that query the machine or use the running CPU's own
/// state, for a type with a field `bare`.
macro_rules! frames_passed_on {
    () => {
        #[inline]
        fn pin(&self) -> quire::cpu::CpuId {
            self.bare.pin()
        }

        #[inline]
        fn unpin(&self) {
            self.bare.unpin();
        }

        #[inline]
        fn interrupts_off(&self) -> bool {
            self.bare.interrupts_off()
        }

        #[inline]
        fn interrupts_restore(&self, were_on: bool) {
            self.bare.interrupts_restore(were_on);
        }

        #[inline]
        fn context(&self) -> quire::platform::Context {
            self.bare.context()
        }

        fn cpu_count(&self) -> usize {
            self.bare.cpu_count()
        }

        fn node_of(&self, cpu: quire::cpu::CpuId) -> u8 {
            self.bare.node_of(cpu)
        }

        fn node_distance(&self, from: u8, to: u8) -> u8 {
            self.bare.node_distance(from, to)
        }

        fn online_cpus(&self) -> quire::cpu::CpuSet {
            self.bare.online_cpus()
        }

        #[inline]
        fn direct_map(&self, addr: quire::addr::PhysAddr) -> *mut u8 {
            self.bare.direct_map(addr)
        }

        fn features(&self) -> quire::arch::CpuFeatures {
            self.bare.features()
        }

        fn caches(&self) -> quire::arch::Caches {
            self.bare.caches()
        }

        fn vectors_begin(&self) -> bool {
            self.bare.vectors_begin()
        }
    };
}

/// All methods of [`quire::platform::Platform`].
macro_rules! spaces_passed_on {
    () => {
        type Pager = hosted::SyntheticFiles;

        fn pager(&self) -> &hosted::SyntheticFiles {
            self.bare.pager()
        }

        fn wait(&self, word: &std::sync::atomic::AtomicU32, seen: u32) {
            self.bare.wait(word, seen);
        }

        fn wake(&self, word: &std::sync::atomic::AtomicU32) {
            self.bare.wake(word);
        }
    };
}

pub(super) use {frames_passed_on, spaces_passed_on};
