//! Pools of huge pages on a hosted machine.

mod charges;
mod collapse;
mod control;
mod edges;
mod failure;
mod files;
mod frames;
mod groups;
mod lockstep;
mod mappings;
mod model;
mod parts;
mod parts_lockstep;
mod parts_moments;
mod parts_threads;
mod poison;
mod resize;
mod support;
mod threads;
mod users;
mod window;
mod window_failures;
mod window_mixed;
mod window_walkers;
mod world;
mod zeroes;
