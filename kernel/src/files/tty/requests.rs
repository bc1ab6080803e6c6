//! Requests to the terminal (`ioctl_tty(2)`).

use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;
use linux_raw_sys::ioctl;
use quire::addr::VirtAddr;

use super::settings::{CHARACTERS, Settings};
use super::{TERMINAL, job_control};
use crate::errno::Errno;
use crate::files::open::Ioctl;
use crate::service::EVENTS;
use crate::task::sched;

/// The size of the kernel's `struct termios`, and of `struct termios2`, which two speeds follow.
const SETTINGS_BYTES: usize = 36;
const SETTINGS2_BYTES: usize = 44;
/// The speed that is reported: it is not limited by anything.
const SPEED: u32 = 38400;

pub(super) fn serve(call: &Ioctl<'_>) -> Result<u64, Errno> {
    match call.request {
        ioctl::TCGETS => get_settings(call, SETTINGS_BYTES),
        ioctl::TCGETS2 => get_settings(call, SETTINGS2_BYTES),
        ioctl::TCSETS | ioctl::TCSETSW | ioctl::TCSETS2 | ioctl::TCSETSW2 => set_settings(call, false),
        ioctl::TCSETSF | ioctl::TCSETSF2 => set_settings(call, true),
        ioctl::TIOCGWINSZ => get_window(call),
        ioctl::TIOCSWINSZ => set_window(call),
        ioctl::TIOCGPGRP => get_foreground(call),
        ioctl::TIOCSPGRP => set_foreground(call),
        ioctl::TIOCGSID => get_session(call),
        ioctl::TIOCSCTTY => job_control::become_controlling(call.argument == 1).map(|()| 0),
        ioctl::TIOCNOTTY => give_up(),
        ioctl::FIONREAD => count(call),
        ioctl::TIOCOUTQ => put_u32(call, 0),
        ioctl::TCFLSH => flush(call.argument),
        // Output is sent at once, so there is nothing to wait for or to stop.
        ioctl::TCSBRK | ioctl::TCSBRKP | ioctl::TCXONC => Ok(0),
        _ => Err(Errno::ENOTTY),
    }
}

fn put_u32(call: &Ioctl<'_>, value: u32) -> Result<u64, Errno> {
    call.memory.write(VirtAddr(call.argument), &value.to_le_bytes())?;
    Ok(0)
}

fn get_u32(call: &Ioctl<'_>) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    call.memory.read(VirtAddr(call.argument), &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn get_settings(call: &Ioctl<'_>, bytes: usize) -> Result<u64, Errno> {
    let settings = TERMINAL.state.lock().settings;
    let mut image = [0; SETTINGS2_BYTES];
    let flags = [settings.input, settings.output, settings.control, settings.local];
    image[..16].copy_from_slice(flags.map(u32::to_le_bytes).as_flattened());
    image[16] = settings.discipline;
    image[17..17 + CHARACTERS].copy_from_slice(&settings.characters);
    image[SETTINGS_BYTES..].copy_from_slice([SPEED; 2].map(u32::to_le_bytes).as_flattened());
    call.memory.write(VirtAddr(call.argument), &image[..bytes])?;
    Ok(0)
}

fn set_settings(call: &Ioctl<'_>, flushes: bool) -> Result<u64, Errno> {
    job_control::check_change()?;
    let mut image = [0; SETTINGS_BYTES];
    call.memory.read(VirtAddr(call.argument), &mut image)?;
    let (flags, rest) = image.split_at(16);
    let flag = |index: usize| u32::from_le_bytes(flags.as_chunks::<4>().0[index]);
    let mut characters = [0; CHARACTERS];
    characters.copy_from_slice(&rest[1..1 + CHARACTERS]);
    let mut state = TERMINAL.state.lock();
    let was_canonical = state.settings.is_canonical();
    state.settings = Settings {
        input: flag(0),
        output: flag(1),
        control: flag(2),
        local: flag(3),
        discipline: rest[0],
        characters,
        window: state.settings.window,
    };
    if flushes {
        state.line.flush();
    }
    if was_canonical && !state.settings.is_canonical() {
        state.line.release();
    }
    drop(state);
    TERMINAL.waiters.notify();
    // There may be room for bytes that wait in the port.
    EVENTS.wake_all();
    Ok(0)
}

fn get_window(call: &Ioctl<'_>) -> Result<u64, Errno> {
    let window = TERMINAL.state.lock().settings.window;
    call.memory.write(VirtAddr(call.argument), window.map(u16::to_le_bytes).as_flattened())?;
    Ok(0)
}

fn set_window(call: &Ioctl<'_>) -> Result<u64, Errno> {
    let mut bytes = [[0; 2]; 4];
    call.memory.read(VirtAddr(call.argument), bytes.as_flattened_mut())?;
    let window = bytes.map(u16::from_le_bytes);
    let old = core::mem::replace(&mut TERMINAL.state.lock().settings.window, window);
    if old != window {
        job_control::signal_foreground(abi::SIGWINCH);
    }
    Ok(0)
}

fn get_foreground(call: &Ioctl<'_>) -> Result<u64, Errno> {
    check_controls()?;
    put_u32(call, TERMINAL.foreground.load(Ordering::Acquire))
}

fn set_foreground(call: &Ioctl<'_>) -> Result<u64, Errno> {
    check_controls()?;
    job_control::check_change().map_err(|errno| if errno == Errno::EIO { Errno::ENOTTY } else { errno })?;
    let group = get_u32(call)?;
    if !job_control::is_group_of_session(group) {
        return Err(if group as i32 <= 0 { Errno::EINVAL } else { Errno::EPERM });
    }
    TERMINAL.foreground.store(group, Ordering::Release);
    Ok(0)
}

fn get_session(call: &Ioctl<'_>) -> Result<u64, Errno> {
    check_controls()?;
    put_u32(call, TERMINAL.session.load(Ordering::Acquire))
}

fn check_controls() -> Result<(), Errno> {
    if job_control::controls(&sched::current().process) { Ok(()) } else { Err(Errno::ENOTTY) }
}

/// The running process no longer has a controlling terminal, if it leads the session.
fn give_up() -> Result<u64, Errno> {
    check_controls()?;
    super::session_ended(sched::current().process.id);
    Ok(0)
}

fn count(call: &Ioctl<'_>) -> Result<u64, Errno> {
    let state = TERMINAL.state.lock();
    let count = state.line.available(&state.settings);
    drop(state);
    put_u32(call, count as u32)
}

fn flush(queue: u64) -> Result<u64, Errno> {
    match queue as u32 {
        abi::TCIFLUSH | abi::TCIOFLUSH => {
            TERMINAL.state.lock().line.flush();
            EVENTS.wake_all();
        }
        abi::TCOFLUSH => {}
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
