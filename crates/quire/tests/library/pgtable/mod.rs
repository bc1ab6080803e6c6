//! Page tables and flushes on a hosted machine: exact counters, small cases, lockstep with a naive model, failures.

#![allow(unreachable_pub)]

mod canary;
mod collapse;
mod collapse_busy;
mod contexts;
mod counters;
mod failures;
mod forks;
mod lockstep;
mod model;
mod recorded;
mod rights;
mod scatter;
mod small;
mod splits;
pub(crate) mod support;
mod threads;
mod windows;
mod world;
