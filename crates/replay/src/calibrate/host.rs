//! Whether the host of a virtual machine takes free memory back.

use std::fs;
use std::path::Path;

/// The bit of free page reporting among the features of a balloon (`VIRTIO_BALLOON_F_REPORTING`, VIRTIO 1.2, 5.5.3).
const REPORTING: usize = 5;

/// A fault that waits for the host takes this many times as long as one that gets memory freed just before.
const WAITS: f64 = 4.0;

/// Whether the kernel with this root directory tells a host which memory is free: through a balloon of virtio that reports
/// it, or through one of Hyper-V.
pub(super) fn takes_free_memory(root: &Path) -> bool {
    let reports = |features: Vec<u8>| features.get(REPORTING) == Some(&b'1');
    devices(root, "virtio/drivers/virtio_balloon", "features").any(reports)
        || devices(root, "vmbus/drivers/hv_balloon", "device_id").next().is_some()
}

/// The contents of this file of each device of a driver.
fn devices<'a>(root: &Path, driver: &str, file: &'a str) -> impl Iterator<Item = Vec<u8>> + 'a {
    let devices = fs::read_dir(root.join("sys/bus").join(driver)).into_iter().flatten().flatten();
    devices.filter_map(move |device| fs::read(device.path().join(file)).ok())
}

/// Whether the host had taken most of the memory of these faults, in nanoseconds each; one of memory that was freed just
/// before takes `again`.
pub(super) fn had_taken(faults: &[f64], again: f64) -> bool {
    faults.iter().filter(|&&ns| ns > WAITS * again).count() > faults.len() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balloon_that_reports_free_memory_is_found() {
        let root = tempfile::tempdir().expect("a directory");
        assert!(!takes_free_memory(root.path()), "there is no balloon");
        let device = root.path().join("sys/bus/virtio/drivers/virtio_balloon/virtio0");
        fs::create_dir_all(&device).expect("a directory");
        assert!(!takes_free_memory(root.path()), "a file of the driver's");
        for (features, takes) in [("0110001", false), ("011", false), ("01100101", true)] {
            fs::write(device.join("features"), features).expect("a file");
            assert_eq!(takes_free_memory(root.path()), takes, "{features}");
        }
    }

    #[test]
    fn memory_that_the_host_took_costs_a_multiple() {
        assert!(had_taken(&[2700.0, 2600.0, 170.0], 180.0));
        assert!(!had_taken(&[2700.0, 190.0, 170.0], 180.0), "some of it");
        assert!(!had_taken(&[300.0, 190.0, 170.0], 180.0));
        assert!(!had_taken(&[], 180.0));
    }
}
