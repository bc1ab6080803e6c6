//! Library and models, step by step.

mod address_space;
mod broken;
mod campaign;
mod canary;
mod failures;
mod frames;
mod interrupts;
mod models;
mod page_tables;
mod threads;
