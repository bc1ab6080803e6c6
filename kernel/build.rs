//! Links the kernel by its own linker script, whatever folder the build is started from.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-link-arg=-T{folder}/kernel.ld");
    // Functions whose code is equal become one. A backtrace names any of them, so not where names are to be exact.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg=--icf=all");
    }
    println!("cargo::rerun-if-changed=kernel.ld");
}
