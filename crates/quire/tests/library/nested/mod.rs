//! A secondary MMU: every verb tells it which copies become stale, and nothing else.

mod brackets;
mod files;
mod huge;
mod places;
mod scene;
mod threads;

use crate::vm::world;
