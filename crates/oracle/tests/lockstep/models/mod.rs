//! The models by themselves, by hand.

mod frames;
mod page_tables;
mod space;
