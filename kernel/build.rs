//! Links the kernel by its own linker script, whatever folder the build is started from.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-link-arg=-T{folder}/kernel.ld");
    println!("cargo::rerun-if-changed=kernel.ld");
}
