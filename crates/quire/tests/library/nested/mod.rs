//! A secondary MMU: every verb tells it what goes bad, and nothing else.

mod brackets;
mod files;
mod huge;
mod places;
mod scene;
mod threads;

use crate::vm::world;
