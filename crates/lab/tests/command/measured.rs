//! `quire verify` beside its prediction. Such tests take turns, since each has the kernel's settings to itself, and stand
//! apart in the order of their names: then others run meanwhile.

use serde_json::Value;

use crate::verify::{may_choose, quire, settled};

#[test]
fn a_program_is_measured_beside_its_prediction() {
    if !may_choose(&[64]) {
        eprintln!("no folios of 64 KiB that this user may choose: not tested");
        return;
    }
    let before = settled();
    // 30 MB in pieces of the heap: a folio more or less at its start does not matter.
    let script = "head -c 40000000 /dev/zero | tail -c 30000000";
    // Sampled runs take most of the time, and a run of this program has ten samples or so.
    let options = ["verify", "--sizes", "4k,64K", "--runs", "3", "--sampled-runs", "2", "--run-off", "10"];
    let output = quire(&[&options[..], &["--format", "json", "--", "sh", "-c", script]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    assert_eq!(settled(), before, "the settings are as before");
    let compared: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON: nothing said");
    assert_eq!((&compared["program"], &compared["runs"]), (&"sh".into(), &3.into()));
    let rows = compared["sizes"].as_array().expect("a list");
    assert_eq!(rows.len(), 2);
    for (row, size) in rows.iter().zip(["4K", "64K"]) {
        assert_eq!(row["folio"], size);
        assert_eq!(row["exit_codes"], Value::from(vec![0]));
        let number = |pointer: &str| row.pointer(pointer).and_then(Value::as_f64).expect(pointer);
        assert!(number("/faults/measured/least") > 20.0, "{row}");
        assert!(number("/run_ns/median") > 0.0, "{row}");
        assert!(number("/peak_rss_bytes/measured/median") > 5e5, "{row}");
        // A loose bound: a busy machine may reclaim and migrate.
        assert!(number("/faults/error_percent").abs() < 20.0, "{row}");
        if compared["sampled_runs"] == 0 {
            assert!(error.contains("the time in faults is not measured: "), "{error}");
        } else {
            let ns = number("/fault_ns/measured/median");
            assert!(ns > 1e5 && ns < number("/run_ns/median") * 10.0, "{row}");
        }
        let length = |pointer: &str| row.pointer(pointer).and_then(Value::as_array).map(Vec::len);
        assert_eq!(length("/samples").unwrap_or(0) as u64, compared["sampled_runs"].as_u64().unwrap());
        for each in ["/each_recording/faults", "/each_recording/fault_ns"] {
            assert_eq!(length(each).map(|length| length as u64), compared["recordings"].as_u64(), "{each}");
        }
        assert!(number("/parts/anon-4K/faults") > 0.0 && number("/parts/anon-4K/each_ns") > 50.0, "{row}");
    }
    // The shell, and what it starts. The folios of the heap are those of `tail`.
    for row in rows {
        let matched = row["processes"]["matched"].as_array().expect("a list");
        let names: Vec<_> = matched.iter().map(|one| one["program"].as_str().expect("text")).collect();
        assert!(names[0] == "sh" && names.contains(&"head") && names.contains(&"tail"), "{row}");
        let peak = |name: &str| {
            let one = matched.iter().find(|one| one["program"] == name).expect("it was seen");
            let of = |pointer: &str| one.pointer(pointer).and_then(Value::as_f64).expect("a number");
            (of("/peak_rss_bytes/predicted"), of("/peak_rss_bytes/measured/median"))
        };
        let ((small, small_measured), (large, large_measured)) = (peak("head"), peak("tail"));
        assert!(small < large / 5.0 && small_measured < large_measured / 5.0, "{row}");
        assert!((large / large_measured - 1.0).abs() < 0.1, "{row}");
    }
    let unsampled_ns = compared["unsampled_ns"].as_f64().expect("a number");
    assert!((0.0..1e4).contains(&unsampled_ns), "{unsampled_ns}");
    // Without a control group it is not known.
    let sampling_percent = compared["sampling_percent"].as_f64().unwrap_or(0.0);
    assert!((0.0..100.0).contains(&sampling_percent), "{sampling_percent}");
    // The program is recorded once before it is run, and once in each turn of sampled runs.
    assert_eq!(compared["recordings"].as_u64(), compared["sampled_runs"].as_u64().map(|runs| runs + 1));
    let advice = &compared["advice"];
    let [least, most] = [0, 1].map(|end: usize| advice["between_percent"][end].as_f64());
    assert!(least <= most && least.is_some(), "{advice}");
    assert!(["4K", "64K"].iter().any(|size| advice["folio"] == *size), "{advice}");
    let against = advice["run_off"]["against"].as_array().expect("a list");
    assert!(against.len() == 1 && against[0]["folio"] != advice["folio"], "the other size: {advice}");
    assert_eq!(against[0]["turns"], 10, "{advice}");
    let least = rows.iter().filter_map(|row| row.pointer("/run_ns/median")?.as_u64()).min();
    assert_eq!(advice["best_run_ns"].as_u64(), least);
}
