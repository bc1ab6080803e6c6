//! The system calls of address spaces with arguments as hostile as a program may pass them, in lockstep with the model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oracle::campaign::Run;
use oracle::ops::source;

fuzz_target!(|bytes: &[u8]| {
    let run = Run::decode(bytes);
    if let Err(what) = run.once() {
        panic!("{what}\non {:?} with files {:?}\n{}", run.machine, run.files, source(&run.steps));
    }
});
