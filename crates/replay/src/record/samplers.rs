//! Samples which memory the processes access, beside a recording: by the best source there is.

use std::sync::mpsc::Sender;
use std::thread::Scope;

use super::collect::Message;
use super::damon::{self, Damon};
use super::options::Source;
use super::referenced::{self, Referenced};
use crate::output::say;
use crate::settings::Places;

/// What samples.
#[derive(Default)]
pub(super) struct Samplers<'s> {
    damon: Option<damon::Running<'s>>,
    referenced: Option<referenced::Running<'s>>,
}

impl<'s> Samplers<'s> {
    /// Starts to sample the processes that live at a time. What DAMON sees becomes messages.
    pub(super) fn start(
        scope: &'s Scope<'s, '_>,
        source: Source,
        living: impl Fn() -> Vec<i32> + Send + 's,
        messages: Sender<Message>,
    ) -> Self {
        let sampling = match source {
            Source::Nothing => None,
            Source::Referenced(sampling) => Some(sampling),
            Source::Damon(next) => match Damon::claim(&Places::of_this_machine()) {
                Ok(damon) => {
                    return Self { damon: Some(damon.start(scope, living, messages)), referenced: None };
                }
                Err(why) => {
                    let instead = match next {
                        Some(_) => "referenced bits are sampled instead",
                        None => "the recording has no accesses",
                    };
                    say(format_args!("quire: {why}: {instead}"));
                    next
                }
            },
        };
        Self { damon: None, referenced: sampling.map(|how| referenced::start(scope, how, living)) }
    }

    /// Ends, with what was referenced. Comes before the end of the recording, so that the collector hears the last of it.
    pub(super) fn end(self) -> Option<Referenced> {
        self.damon.into_iter().for_each(damon::Running::end);
        self.referenced.map(referenced::Running::end)
    }
}
