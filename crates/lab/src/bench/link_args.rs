//! The options of the link that the experiment `postcopy` migrates over.

use std::time::Duration;

use bytesize::ByteSize;

use crate::output::line;

/// An option that is not given has the value of the experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct LinkArgs {
    /// `postcopy`: bytes that the link carries in a second, as `1.25GB`, `500MiB` or `117MB/s` [default: 1.25GB, or a quarter of
    /// it with --smoke].
    #[arg(long = "link-rate", value_name = "SIZE", value_parser = rate)]
    pub rate: Option<u64>,
    /// `postcopy`: time from a request to the first byte of the answer when the link is free, as `20us` or `1ms` [default: 20us].
    #[arg(long = "link-latency", value_name = "TIME", value_parser = latency)]
    pub latency: Option<u64>,
}

/// Bytes a second.
fn rate(text: &str) -> Result<u64, String> {
    let size = text.strip_suffix("/s").unwrap_or(text).parse::<ByteSize>();
    match size.map(|size| size.as_u64()) {
        // The model's clock can count from one byte a second to 64 bits of bits.
        Ok(bytes) if (1..=u64::MAX / 8).contains(&bytes) => Ok(bytes),
        Ok(_) => Err("a link carries at least a byte in a second, and less than 2 EiB".to_owned()),
        Err(error) => {
            Err(format!("{}: write a number and a unit, as 1.25GB or 500MiB", line(&error.to_string())))
        }
    }
}

/// Nanoseconds.
fn latency(text: &str) -> Result<u64, String> {
    let time: Duration = humantime::parse_duration(text)
        .map_err(|error| format!("{}: write a number and a unit, as 20us", line(&error.to_string())))?;
    match u64::try_from(time.as_nanos()) {
        Ok(nanoseconds) if nanoseconds <= LONGEST => Ok(nanoseconds),
        _ => Err("a link answers within ten seconds".to_owned()),
    }
}

/// The longest latency, in nanoseconds: the histogram of fetches has room for it, with time to spare.
const LONGEST: u64 = 10_000_000_000;

#[cfg(test)]
mod tests;
