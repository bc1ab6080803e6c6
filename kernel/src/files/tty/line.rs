//! The line discipline: from bytes that arrive to bytes that are read.

use linux_raw_sys::general as abi;

use super::settings::Settings;

/// How much input is kept, as in Linux.
pub const MOST_BYTES: usize = 4096;

/// What an input byte did.
pub enum Input {
    /// Nothing that a reader waits for.
    Nothing,
    /// There is something to read.
    Ready,
    /// The foreground gets this signal.
    Signal(u32),
}

/// Input. Bytes before `ready` can be read; those behind it are a line that is being edited.
pub struct Line {
    bytes: [u8; MOST_BYTES],
    length: usize,
    ready: usize,
    /// Ends of input (`^D`) without a line feed: how many bytes precede each.
    ends: [usize; 16],
    end_count: usize,
    /// The next byte is taken as it is.
    literal: bool,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; MOST_BYTES], length: 0, ready: 0, ends: [0; 16], end_count: 0, literal: false }
    }

    /// Takes a byte that has arrived. Runs in interrupt handlers.
    pub(super) fn input(&mut self, byte: u8, settings: &Settings) -> Input {
        let byte = match byte {
            b'\r' if settings.has_input(abi::IGNCR) => return Input::Nothing,
            b'\r' if settings.has_input(abi::ICRNL) => b'\n',
            b'\n' if settings.has_input(abi::INLCR) => b'\r',
            byte => byte,
        };
        if core::mem::take(&mut self.literal) {
            return self.add(byte, settings, false);
        }
        if settings.has_local(abi::ISIG)
            && let Some(signal) = signal_of(byte, settings)
        {
            settings.echo(byte);
            if !settings.has_local(abi::NOFLSH) {
                self.flush();
            }
            return Input::Signal(signal);
        }
        if settings.has_local(abi::IEXTEN) && settings.is(byte, abi::VLNEXT) && settings.is_canonical() {
            self.literal = true;
            return Input::Nothing;
        }
        if settings.is_canonical() { self.edit(byte, settings) } else { self.add(byte, settings, true) }
    }

    fn edit(&mut self, byte: u8, settings: &Settings) -> Input {
        if settings.is(byte, abi::VERASE) {
            self.erase_one(settings);
        } else if settings.is(byte, abi::VWERASE) && settings.has_local(abi::IEXTEN) {
            self.erase_while(settings, |byte| byte == b' ');
            self.erase_while(settings, |byte| byte != b' ');
        } else if settings.is(byte, abi::VKILL) {
            self.erase_while(settings, |_| true);
        } else if settings.is(byte, abi::VEOF) {
            return self.end();
        } else {
            return self.add(byte, settings, ends_line(byte, settings));
        }
        Input::Nothing
    }

    /// Appends a byte; with `ready` it and all before it can be read.
    fn add(&mut self, byte: u8, settings: &Settings, ready: bool) -> Input {
        // The last place of a line is for its end.
        let most = if settings.is_canonical() && !ready { MOST_BYTES - 1 } else { MOST_BYTES };
        if self.length >= most {
            return Input::Nothing;
        }
        settings.echo(byte);
        self.bytes[self.length] = byte;
        self.length += 1;
        if ready {
            self.ready = self.length;
            return Input::Ready;
        }
        Input::Nothing
    }

    fn end(&mut self) -> Input {
        if self.end_count < self.ends.len() {
            self.ready = self.length;
            self.ends[self.end_count] = self.ready;
            self.end_count += 1;
        }
        Input::Ready
    }

    fn erase_one(&mut self, settings: &Settings) {
        if self.length > self.ready {
            self.length -= 1;
            settings.erase(self.bytes[self.length]);
        }
    }

    fn erase_while(&mut self, settings: &Settings, erased: impl Fn(u8) -> bool) {
        while self.length > self.ready && erased(self.bytes[self.length - 1]) {
            self.erase_one(settings);
        }
    }

    /// Whether bytes wait in the port until a reader has made room. A line that is too long has no reader yet, and
    /// loses its end.
    pub(super) fn is_full(&self, settings: &Settings) -> bool {
        let has_reader = !settings.is_canonical() || self.ready > 0 || self.end_count > 0;
        has_reader && self.length >= MOST_BYTES - 1
    }

    /// Forgets all input.
    pub(super) fn flush(&mut self) {
        (self.length, self.ready, self.end_count, self.literal) = (0, 0, 0, false);
    }

    /// Lines no longer matter: all input can be read.
    pub(super) fn release(&mut self) {
        self.ready = self.length;
        self.end_count = 0;
    }

    /// How many bytes a read would get at most.
    pub(super) fn available(&self, settings: &Settings) -> usize {
        if settings.is_canonical() { self.first_line(settings) } else { self.ready }
    }

    /// Whether `poll` calls it readable: there is a line or its end. Without lines there are as many bytes as end a read,
    /// or any if time ends it too.
    pub(super) fn is_worth_a_read(&self, settings: &Settings) -> bool {
        let least =
            if settings.is_canonical() || settings.patience_ns() > 0 { 1 } else { settings.least().max(1) };
        self.available(settings) >= least || self.end_count > 0
    }

    /// Whether a read that `least` bytes end need not wait. `idle_ns`: how long ago the last byte came.
    pub(super) fn is_readable(&self, settings: &Settings, least: usize, idle_ns: u64) -> bool {
        if settings.is_canonical() {
            return self.ready > 0 || self.end_count > 0;
        }
        let patience = settings.patience_ns();
        let expired = patience > 0 && idle_ns >= patience && (settings.least() == 0 || self.ready > 0);
        self.ready >= least.max(1) || expired || settings.least() == 0 && patience == 0
    }

    /// The length of the first line, with its end.
    fn first_line(&self, settings: &Settings) -> usize {
        let ends = |byte: &u8| ends_line(*byte, settings);
        let line = self.bytes[..self.ready].iter().position(ends).map_or(self.ready, |at| at + 1);
        if self.end_count > 0 { line.min(self.ends[0]) } else { line }
    }

    /// Moves bytes to a reader.
    pub(super) fn take(&mut self, to: &mut [u8], settings: &Settings) -> usize {
        let count = self.available(settings).min(to.len());
        to[..count].copy_from_slice(&self.bytes[..count]);
        self.bytes.copy_within(count..self.length, 0);
        (self.length, self.ready) = (self.length - count, self.ready - count);
        let ends = &mut self.ends[..self.end_count];
        ends.iter_mut().for_each(|end| *end = end.saturating_sub(count));
        // An end of input that was reached is gone. Behind a whole line it is the end that the next read finds.
        let is_line = count > 0 && ends_line(to[count - 1], settings);
        if settings.is_canonical() && ends.first() == Some(&0) && !is_line {
            self.ends.copy_within(1.., 0);
            self.end_count -= 1;
        }
        count
    }
}

/// Whether a byte is the last one of its line.
fn ends_line(byte: u8, settings: &Settings) -> bool {
    byte == b'\n' || settings.is(byte, abi::VEOL) || settings.is(byte, abi::VEOL2)
}

fn signal_of(byte: u8, settings: &Settings) -> Option<u32> {
    let signals = [(abi::VINTR, abi::SIGINT), (abi::VQUIT, abi::SIGQUIT), (abi::VSUSP, abi::SIGTSTP)];
    signals.into_iter().find(|(character, _)| settings.is(byte, *character)).map(|(_, signal)| signal)
}
