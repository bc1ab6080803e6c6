//! The `quire` command; its code is in the library beside it.

fn main() -> std::process::ExitCode {
    lab::cli::main()
}
