//! The options that price what the experiment `hugetlb-pool` counts.

/// The machines whose broadcasts the arms pay for.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct PriceArgs {
    /// `hugetlb-pool`: in further cases each broadcast takes as long as on a machine with this many CPUs, 2 to 252. The
    /// price is on the straight line through 11 us with 2 CPUs (measured, docs/measured.md) and 276 us with 252 (Kravetz
    /// 2023, a virtual machine).
    #[arg(long = "ipi-price", value_name = "CPUS", value_delimiter = ',', default_values_t = [2, 16, 64, 252], value_parser = clap::value_parser!(u16).range(2..=252))]
    pub cpus: Vec<u16>,
}
