//! The `quire` command; everything it does lives in the library beside it.

fn main() -> std::process::ExitCode {
    lab::cli::main()
}
