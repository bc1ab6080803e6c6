//! Interrupts from one CPU to another.

use quire::cpu::CpuId;

/// Makes a CPU look whether a task waits for it.
pub fn reschedule(_cpu: CpuId) {}
