//! No byte is cleared twice: memory that was cleared, or was zero at the start, is not cleared again before it is stored
//! to. The machine counts the frames for which this does not hold (`Hosted::frames_cleared_again`), over every path
//! that hands memory out and takes it back. `docs/architecture/clearing.md` lists those that remain, and why.

mod alloc;
mod answers;
mod cpus;
mod drawn;
mod leaks;
mod moved;
mod pools;
mod races;
mod ranges;
mod spaces;
mod support;
