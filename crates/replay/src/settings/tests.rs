use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use super::journal::Journal;
use super::{Left, Places, Settings, Sizes, put_back_left};
use crate::host::thp::{selected, sizes};

/// A process holds the settings once at a time; these tests run side by side.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The turn of one test.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy of the kernel's files that, like them, start with `never` everywhere but one.
struct Copy {
    places: Places,
    _directory: TempDir,
    _alone: MutexGuard<'static, ()>,
}

const SIZES: [(usize, &str); 3] = [(16, "never"), (64, "never"), (2048, "inherit")];

fn copy() -> Copy {
    let alone = one_at_a_time();
    let directory = TempDir::new().unwrap();
    let places = Places::under(directory.path().to_owned());
    fs::create_dir_all(places.min_free.parent().unwrap()).unwrap();
    fs::create_dir_all(&places.state).unwrap();
    // A size without the setting (shared memory alone has 8 KiB folios) and a file that is no size.
    fs::create_dir_all(places.settings.join("hugepages-8kB")).unwrap();
    fs::create_dir_all(&places.settings).unwrap();
    fs::write(places.settings.join("enabled"), "always [madvise] never\n").unwrap();
    fs::write(&places.min_free, "67584\n").unwrap();
    for (kib, value) in SIZES {
        let directory = places.settings.join(format!("hugepages-{kib}kB"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("enabled"), format!("{value}\n")).unwrap();
    }
    Copy { places, _directory: directory, _alone: alone }
}

fn values(places: &Places) -> Vec<(usize, String)> {
    sizes(&places.settings).into_iter().map(|(kib, path)| (kib, selected(&path).unwrap())).collect()
}

fn original() -> Vec<(usize, String)> {
    SIZES.into_iter().map(|(kib, value)| (kib, value.to_owned())).collect()
}

fn only_64() -> Vec<(usize, String)> {
    [(16, "never"), (64, "madvise"), (2048, "never")].map(|(kib, value)| (kib, value.to_owned())).to_vec()
}

#[test]
fn the_value_in_brackets_is_the_selected_one() {
    let copy = copy();
    assert_eq!(selected(&copy.places.settings.join("enabled")).as_deref(), Some("madvise"));
    assert_eq!(selected(&copy.places.min_free).as_deref(), Some("67584"));
    assert_eq!(selected(Path::new("/no such file")), None);
}

#[test]
fn settings_come_back_when_the_guard_goes() {
    let Copy { places, .. } = &copy();
    let settings = Settings::acquire(places).unwrap();
    assert!(places.journal().exists());
    assert_eq!(values(places), original(), "taking the guard changes nothing");
    settings.only(64).unwrap();
    assert_eq!(values(places), only_64());
    // The kernel changes this one by itself when the sizes change.
    fs::write(&places.min_free, "19861").unwrap();
    drop(settings);
    assert_eq!(values(places), original());
    assert_eq!(selected(&places.min_free).as_deref(), Some("67584"));
    assert!(!places.journal().exists());
}

#[test]
fn other_settings_come_back_with_them() {
    let Copy { places, .. } = &copy();
    let pool = places.settings.join("nr_hugepages");
    fs::write(&pool, "3\n").unwrap();
    let settings = Settings::acquire(places).unwrap();
    assert_eq!(settings.before(&pool), None);
    for wanted in ["7", "9"] {
        assert_eq!(settings.set(&pool, wanted).unwrap(), wanted);
        assert_eq!(settings.before(&pool).as_deref(), Some("3"), "what was there first counts");
    }
    assert!(
        fs::read_to_string(places.journal()).unwrap().contains("nr_hugepages"),
        "a killed process leaves a journal of it"
    );
    assert!(settings.set(&places.settings.join("missing"), "1").is_err());
    drop(settings);
    assert_eq!(selected(&pool).as_deref(), Some("3"));
    assert_eq!(values(places), original());
}

#[test]
fn settings_come_back_after_a_panic() {
    let copy = copy();
    let places = copy.places.clone();
    let panicked = std::thread::spawn(move || {
        let settings = Settings::acquire(&places).unwrap();
        settings.only(64).unwrap();
        panic!("in the middle of a measurement");
    });
    assert!(panicked.join().is_err());
    assert_eq!(values(&copy.places), original());
    assert!(!copy.places.journal().exists());
}

#[test]
fn what_a_killed_process_left_is_put_back_by_the_next() {
    let Copy { places, .. } = &copy();
    let settings = Settings::acquire(places).unwrap();
    settings.only(64).unwrap();
    let journal = fs::read(places.journal()).unwrap();
    drop(settings);
    // The state after a kill: the journal, and changed settings.
    fs::write(places.journal(), journal).unwrap();
    for (kib, value) in only_64() {
        fs::write(places.settings.join(format!("hugepages-{kib}kB/enabled")), value).unwrap();
    }
    let next = Settings::acquire(places).unwrap();
    assert_eq!(values(places), original(), "put back before the next change");
    next.only(16).unwrap();
    drop(next);
    assert_eq!(values(places), original());
}

/// After a kill and changes by the user: values of the killed run are restored, the user's values stay.
#[test]
fn what_the_user_set_after_a_kill_stays() {
    let Copy { places, .. } = &copy();
    let size = |kib: usize| places.settings.join(format!("hugepages-{kib}kB/enabled"));
    let (pool, own_pool) = (places.settings.join("nr_hugepages"), places.settings.join("nr_overcommit"));
    fs::write(&pool, "3\n").unwrap();
    fs::write(&own_pool, "4\n").unwrap();
    let settings = Settings::acquire(places).unwrap();
    settings.only(64).unwrap();
    settings.set(&own_pool, "0").unwrap();
    settings.set(&pool, "0").unwrap();
    settings.expect(&pool, &["0", "512"]).unwrap();
    let journal = fs::read(places.journal()).unwrap();
    drop(settings);
    fs::write(places.journal(), journal).unwrap();
    let left = [(size(16), "never"), (size(64), "madvise"), (size(2048), "always"), (pool.clone(), "512")];
    for (path, value) in left.into_iter().chain([(own_pool.clone(), "7"), (places.min_free.clone(), "99999")])
    {
        fs::write(path, value).unwrap();
    }
    drop(Settings::acquire(places).unwrap());
    let expected =
        [(16, "never"), (64, "never"), (2048, "always")].map(|(kib, value)| (kib, value.to_owned()));
    assert_eq!(values(places), expected);
    assert_eq!(selected(&pool).as_deref(), Some("3"), "512 is what the killed run said it would set");
    assert_eq!(selected(&own_pool).as_deref(), Some("7"));
    assert_eq!(selected(&places.min_free).as_deref(), Some("99999"));
    assert!(!places.journal().exists());
}

/// The kernel grows and shrinks a pool page by page, until a signal ends it.
#[test]
fn a_pool_that_a_killed_process_was_changing_is_put_back() {
    let Copy { places, .. } = &copy();
    let (pool, other) = (places.settings.join("nr_hugepages"), places.settings.join("pages_to_scan"));
    // What the killed process had noted, and what was found after it.
    for (path, noted, now, expected) in [
        (&pool, "100", "37", "3"),
        (&pool, "0", "2", "3"),
        (&pool, "100", "101", "101"),
        (&other, "100", "37", "37"),
    ] {
        fs::write(path, "3\n").unwrap();
        let mut journal = Journal::found(std::iter::once(path), &places.min_free, places.journal());
        journal.expect(&[(path, &[noted])], true).unwrap();
        fs::write(path, now).unwrap();
        drop(Settings::acquire(places).unwrap());
        assert_eq!(selected(path).as_deref(), Some(expected), "{noted} {now}");
        assert!(!places.journal().exists());
    }
    // The pool is set again and again, and other settings are between: killed while it grew, it was left at one of two pages.
    fs::write(&pool, "3\n").unwrap();
    fs::write(&other, "5\n").unwrap();
    let mut journal = Journal::found([&pool, &other].into_iter(), &places.min_free, places.journal());
    journal.expect(&[(&pool, &["0", "100"])], false).unwrap();
    journal.expect(&[(&other, &["6"])], true).unwrap();
    fs::write(&other, "6").unwrap();
    journal.settle(std::iter::once(other.as_path())).unwrap();
    fs::write(&pool, "37").unwrap();
    drop(Settings::acquire(places).unwrap());
    assert_eq!(selected(&pool).as_deref(), Some("3"));
    // One of two parts of a run that set it again and again has ended, and emptied it; the other goes on.
    let mut journal = Journal::found(std::iter::once(&pool), &places.min_free, places.journal());
    journal.expect(&[(&pool, &["0", "100"])], false).unwrap();
    journal.expect(&[(&pool, &["0"])], true).unwrap();
    fs::write(&pool, "0").unwrap();
    journal.settle(std::iter::once(pool.as_path())).unwrap();
    fs::write(&pool, "37").unwrap();
    drop(Settings::acquire(places).unwrap());
    assert_eq!(selected(&pool).as_deref(), Some("3"));
    // It had grown, and was killed as it shrank again; a value from between is the user's where nothing was
    // changing.
    for (shrinks, expected) in [(true, "3"), (false, "37")] {
        fs::write(&pool, "3\n").unwrap();
        let mut journal = Journal::found(std::iter::once(&pool), &places.min_free, places.journal());
        journal.expect(&[(&pool, &["100"])], true).unwrap();
        fs::write(&pool, "100").unwrap();
        journal.settle(std::iter::once(pool.as_path())).unwrap();
        if shrinks {
            journal.note_putting_back();
        }
        fs::write(&pool, "37").unwrap();
        drop(Settings::acquire(places).unwrap());
        assert_eq!(selected(&pool).as_deref(), Some(expected));
    }
}

/// A page of 1 GiB may need the memory that the pool of 2 MiB pages has.
#[test]
fn pools_shrink_before_others_grow() {
    let Copy { places, .. } = &copy();
    let [large, small] =
        ["1048576", "2048"].map(|kib| places.pools.join(format!("hugepages-{kib}kB/nr_hugepages")));
    // A run that was killed leaves its lock file, too.
    drop(Settings::acquire(places).unwrap());
    for (before, grown, first) in [("2", "0", &small), ("0", "2", &large)] {
        for (path, value) in [(&large, before), (&small, grown)] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        let both = || [&large, &small].into_iter();
        let mut journal = Journal::found(both(), &places.min_free, places.journal());
        journal
            .expect(&both().map(|path| (path.as_path(), &["0", "2"][..])).collect::<Vec<_>>(), true)
            .unwrap();
        fs::write(&large, grown).unwrap();
        fs::write(&small, before).unwrap();
        let Ok(Left::PutBack(told)) = put_back_left(places) else { panic!("nothing was put back") };
        assert!(told[1].contains(first.to_str().unwrap()), "{told:?}");
        assert_eq!(both().map(|path| selected(path).unwrap()).collect::<Vec<_>>(), [before, grown]);
    }
}

/// The next start was killed too, while it put back what the first process had left.
#[test]
fn what_two_killed_processes_left_is_put_back() {
    let Copy { places, .. } = &copy();
    let (pool, scan) = (places.settings.join("nr_hugepages"), places.settings.join("pages_to_scan"));
    let write = |path: &Path, value: &str| fs::write(path, value).unwrap();
    for (follower, expected) in [("70000", "67584"), ("99999", "99999")] {
        write(&pool, "3");
        write(&scan, "4096");
        write(&places.min_free, "67584");
        let both = [&pool, &scan];
        let mut journal = Journal::found(both.into_iter(), &places.min_free, places.journal());
        journal.expect(&[(&pool, &["100"]), (&scan, &["1"])], true).unwrap();
        write(&pool, "100");
        write(&scan, "1");
        write(&places.min_free, "70000");
        journal.settle(both.into_iter().map(|path| path.as_path())).unwrap();
        // The user sets one of them, and perhaps the follower.
        write(&scan, "50");
        write(&places.min_free, follower);
        drop(Journal::read(&places.journal()).unwrap().unwrap().found_now());
        write(&pool, "37");
        write(&places.min_free, "80000");
        drop(Settings::acquire(places).unwrap());
        assert_eq!(selected(&pool).as_deref(), Some("3"));
        assert_eq!(selected(&places.min_free).as_deref(), Some(expected));
        assert_eq!(selected(&scan).as_deref(), Some("50"), "the user's");
        assert!(!places.journal().exists());
    }
}

#[test]
fn a_journal_that_is_none_changes_nothing() {
    let Copy { places, .. } = &copy();
    fs::write(places.journal(), "{\"values\":").unwrap();
    drop(Settings::acquire(places).unwrap());
    assert_eq!(values(places), original());
}

#[test]
fn a_size_that_the_kernel_lacks_is_said() {
    let Copy { places, .. } = &copy();
    let settings = Settings::acquire(places).unwrap();
    assert_eq!(settings.only(8).unwrap_err().0, "this kernel has no anonymous folios of 8 KiB");
    assert_eq!(values(places), original());
    drop(settings);
    fs::remove_dir_all(&places.settings).unwrap();
    let error = Settings::acquire(places).unwrap().only(64).unwrap_err();
    assert!(error.0.contains("Linux 6.8"), "{error:?}");
}

/// Makes the state after a kill.
fn killed_while_64(places: &Places) {
    let settings = Settings::acquire(places).unwrap();
    settings.only(64).unwrap();
    let journal = fs::read(places.journal()).unwrap();
    drop(settings);
    fs::write(places.journal(), journal).unwrap();
    for (kib, value) in only_64() {
        fs::write(places.settings.join(format!("hugepages-{kib}kB/enabled")), value).unwrap();
    }
}

#[test]
fn the_next_start_puts_back_what_a_killed_process_left() {
    let Copy { places, .. } = &copy();
    assert_eq!(put_back_left(places), Ok(Left::Nothing));
    killed_while_64(places);
    let Ok(Left::PutBack(told)) = put_back_left(places) else { panic!("nothing was put back") };
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(values(places), original());
    assert_eq!(put_back_left(places), Ok(Left::Nothing));
}

#[test]
fn settings_that_a_running_process_has_changed_are_left_to_it() {
    let Copy { places, .. } = &copy();
    let settings = Settings::acquire(places).unwrap();
    settings.only(64).unwrap();
    assert_eq!(put_back_left(places), Ok(Left::InUse));
    assert_eq!(values(places), only_64());
    drop(settings);
    assert_eq!(values(places), original());
}

/// What a killed run had forked holds its lock until it has ended, too. A start told nothing and put nothing back.
#[test]
fn the_next_start_waits_for_what_a_killed_process_had_forked() {
    let Copy { places, .. } = &copy();
    killed_while_64(places);
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let number = ended.id().to_string();
    ended.wait().unwrap();
    fs::write(places.lock(), number).unwrap();
    let forked = fs::File::open(places.lock()).unwrap();
    forked.lock().unwrap();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(forked);
    });
    assert!(matches!(put_back_left(places), Ok(Left::PutBack(_))));
    ends.join().unwrap();
    assert_eq!(values(places), original());
}

/// Leaves a journal of one more setting, as a killed process does that had set the value it has now.
fn killed_with(places: &Places, path: &Path, before: &str) {
    let settings = Settings::acquire(places).unwrap();
    let mut journal: serde_json::Value =
        serde_json::from_slice(&fs::read(places.journal()).unwrap()).unwrap();
    drop(settings);
    let set = selected(path).unwrap();
    journal["settings"][path.to_str().unwrap()] = serde_json::json!({ "before": before, "set": [set] });
    fs::write(places.journal(), journal.to_string()).unwrap();
}

#[test]
fn the_journal_stays_until_all_of_it_is_put_back() {
    let Copy { places, .. } = &copy();
    // It can be read, and every write fails.
    killed_with(places, Path::new("/proc/version"), "x");
    for _ in 0..2 {
        assert!(put_back_left(places).is_err());
        assert!(places.journal().exists(), "what it was before is nowhere else");
    }
    assert!(Settings::acquire(places).is_err(), "that it has another value now is not what was found");
    assert!(places.journal().exists());
}

#[test]
fn a_value_that_the_kernel_takes_in_part_is_not_put_back() {
    let Copy { places, .. } = &copy();
    // The name of this thread, of which the kernel keeps 15 letters.
    let (name, wanted) = (Path::new("/proc/thread-self/comm"), "a-name-of-20-letters");
    killed_with(places, name, wanted);
    for _ in 0..2 {
        let told = put_back_left(places);
        assert!(told.is_err() && places.journal().exists(), "{told:?}");
        assert_eq!(selected(name).as_deref(), Some(&wanted[..15]));
    }
    fs::write(name, "set-by-hand").unwrap();
    let told = put_back_left(places);
    assert!(matches!(&told, Ok(Left::PutBack(told)) if told[1].starts_with("left alone: ")), "{told:?}");
    assert_eq!(selected(name).as_deref(), Some("set-by-hand"));
    assert!(!places.journal().exists());
}

#[test]
fn what_the_guard_cannot_put_back_stays_in_the_journal() {
    let Copy { places, .. } = &copy();
    let pool = places.settings.join("nr_hugepages");
    fs::write(&pool, "3\n").unwrap();
    let settings = Settings::acquire(places).unwrap();
    settings.only(64).unwrap();
    settings.set(&pool, "7").unwrap();
    fs::remove_file(&pool).unwrap();
    fs::create_dir(&pool).unwrap();
    drop(settings);
    assert_eq!(values(places), original(), "the others are put back");
    fs::remove_dir(&pool).unwrap();
    fs::write(&pool, "7\n").unwrap();
    let told = put_back_left(places);
    assert!(matches!(&told, Ok(Left::PutBack(told)) if told.len() == 2), "{told:?}");
    assert_eq!(selected(&pool).as_deref(), Some("3"));
}

/// A lock needs no right to write: any user could keep all runs waiting.
#[test]
fn no_other_user_can_take_the_lock() {
    let Copy { places, .. } = &copy();
    drop(Settings::acquire(places).unwrap());
    let mode = fs::metadata(places.lock()).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[test]
fn a_damaged_journal_is_an_error_at_every_start() {
    let Copy { places, .. } = &copy();
    killed_while_64(places);
    fs::write(places.journal(), "{\"values\":").unwrap();
    assert!(put_back_left(places).is_err());
}

#[test]
fn sizes_are_always_until_another_program_changes_one() {
    let Copy { places, .. } = &copy();
    let settings = Settings::acquire(places).unwrap();
    assert_eq!(Settings::folio_sizes(places), [4, 16, 64, 2048]);
    for kib in [&[][..], &[16], &[64, 2048], &[2048]] {
        settings.always(kib).unwrap();
        assert!(settings.is_given(&Sizes { always: kib, madvise: &[] }));
        let own =
            SIZES.map(|(size, _)| (size, if kib.contains(&size) { "always" } else { "never" }.to_owned()));
        assert_eq!(values(places), own);
    }
    fs::write(places.settings.join("hugepages-16kB/enabled"), "madvise").unwrap();
    assert!(!settings.is_given(&Sizes { always: &[2048], madvise: &[] }));
    assert!(settings.always(&[16, 8]).is_err());
    let both = Sizes { always: &[16], madvise: &[2048] };
    settings.give(&both).unwrap();
    assert_eq!(
        values(places),
        [(16, "always"), (64, "never"), (2048, "madvise")].map(|(size, value)| (size, value.to_owned()))
    );
    assert!(settings.is_given(&both) && !settings.is_given(&Sizes { madvise: &[], ..both }));
    drop(settings);
    assert_eq!(values(places), original());
}

const ONLY_64: Sizes<'_> = Sizes { always: &[64], madvise: &[] };

#[test]
fn what_ran_while_another_program_changed_the_sizes_is_done_again() {
    let Copy { places, .. } = &copy();
    let settings = Settings::acquire(places).unwrap();
    let write = |value: &str| fs::write(places.settings.join("hugepages-16kB/enabled"), value).unwrap();
    let mut runs = 0;
    let seen = settings.while_given(&ONLY_64, || {
        runs += 1;
        if runs == 1 {
            write("always");
        }
        Ok(values(places))
    });
    let only_64 = [(16, "never"), (64, "always"), (2048, "never")];
    assert_eq!(seen.unwrap(), only_64.map(|(kib, value)| (kib, value.to_owned())));
    assert_eq!(runs, 2);
    let always = settings.while_given(&ONLY_64, || {
        write("always");
        Ok(())
    });
    assert!(always.unwrap_err().to_string().contains("keeps changing"));
    assert_eq!(settings.while_given(&ONLY_64, || anyhow::Ok(7)).unwrap(), 7);
}

#[test]
fn shared_memory_has_sizes_of_its_own() {
    let Copy { places, .. } = &copy();
    let of_shmem = |kib: usize| places.settings.join(format!("hugepages-{kib}kB/shmem_enabled"));
    SIZES.iter().for_each(|(kib, value)| fs::write(of_shmem(*kib), value).unwrap());
    // Anonymous memory has no folios of 8 KiB.
    fs::write(of_shmem(8), "always").unwrap();
    let overall = places.settings.join("shmem_enabled");
    fs::write(&overall, "always within_size advise never deny [force]\n").unwrap();
    let settings = Settings::acquire(places).unwrap();
    settings.shmem(&[64]).unwrap();
    let all = || [16, 64, 2048].map(|kib| selected(&of_shmem(kib)).unwrap());
    assert_eq!(all(), ["never", "within_size", "never"]);
    assert_eq!(selected(&of_shmem(8)).as_deref(), Some("never"));
    assert_eq!(selected(&overall).as_deref(), Some("never"), "under `force` no size counts");
    let why = settings.shmem(&[32]).unwrap_err().to_string();
    assert!(why.contains("no folios of 32 KiB for shared memory"), "{why}");
    drop(settings);
    assert_eq!(all(), SIZES.map(|(_, value)| value));
    assert_eq!(selected(&of_shmem(8)).as_deref(), Some("always"));
    assert_eq!(selected(&overall).as_deref(), Some("force"));
    assert_eq!(values(places), original());
}
