//! `quire report html`: what a browser shows.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::text;

/// Writes the page of these files, as `written` does, and opens it.
pub(crate) fn show(figures: &[&Path], folder: &Path) -> String {
    let page = written(figures, folder);
    open(&[&page], folder);
    page
}

/// Writes the page of these files: each plot has marks, and nothing comes from elsewhere.
fn written(figures: &[&Path], folder: &Path) -> String {
    let page = folder.join("report.html");
    let mut report = Command::new(env!("CARGO_BIN_EXE_quire"));
    let output = report.args(["report", "html", "-o"]).arg(&page).args(figures).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(&page).unwrap();
    let plots: Vec<&str> = written.split("<svg").skip(1).collect();
    assert!(!plots.is_empty());
    for plot in plots {
        let plot = plot.split("</svg>").next().unwrap();
        // The colours of marks and lines; axes and text have others.
        let drawn = (11..=14).any(|series| plot.contains(&format!("\"#0000{series}\"")));
        assert!(drawn, "no marks in {plot}");
    }
    let outside = written.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http") && !outside.contains("<script"), "not self-contained");
    written
}

/// In a browser, light and dark, the pages have no complaint and fit the width of a phone and of a desk: each is in four
/// frames, of which none may scroll sideways. No window of a browser is narrower than 500, and a start of the browser takes
/// longer than all else here, so one shows all frames. What the frame is to be in, the page prefers.
fn open(pages: &[&str], folder: &Path) {
    let tell = "dataset.fits = contentDocument.documentElement.scrollWidth <= clientWidth; \
                dataset.scheme = contentWindow.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'";
    let frame = |page: &str, scheme: &str, width: u32| {
        let style = format!("width:{width}px;height:1000px;border:0;color-scheme:{scheme}");
        format!("<iframe style='{style}' onload=\"{tell}\" srcdoc=\"{page}\"></iframe>")
    };
    let mut rows = String::new();
    for page in pages.iter().map(|page| page.replace('&', "&amp;").replace('"', "&quot;")) {
        for scheme in ["light", "dark"] {
            rows += &format!("<div>{}</div>", [400, 1600].map(|width| frame(&page, scheme, width)).concat());
        }
    }
    let framed = folder.join("framed.html");
    let head = "<!DOCTYPE html><meta name='color-scheme' content='light dark'>";
    std::fs::write(&framed, format!("{head}<body style='white-space:nowrap'>{rows}</body>")).unwrap();
    let picture = folder.join("picture.png");
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
    browser.arg(format!("--window-size=2100,{}", 200 + 2000 * pages.len())).arg("--dump-dom");
    browser.arg(format!("--screenshot={}", picture.display()));
    let Ok(seen) = browser.arg(format!("file://{}", framed.display())).output() else {
        return println!("not opened in a browser: install chromium to see it done");
    };
    let (dom, said) = (text(&seen.stdout), text(&seen.stderr));
    assert!(seen.status.success() && picture.metadata().is_ok_and(|file| file.len() > 10_000), "{said}");
    assert!(!said.contains("CONSOLE"), "{said}");
    let count = |told: &str| dom.matches(told).count();
    let fits = [count("data-fits=\"true\""), count("data-fits=\"false\"")];
    assert_eq!(fits, [4 * pages.len(), 0], "wider than its frame");
    for scheme in ["light", "dark"] {
        let seen = count(&format!("data-scheme=\"{scheme}\""));
        assert_eq!(seen, 2 * pages.len(), "{scheme} is not what it is shown in");
    }
}

#[test]
fn predictions_stand_beside_what_was_measured() {
    let figure = |predicted: u64, measured: u64, verdict: &str| {
        let spread = json!({"median": measured, "least": measured, "most": measured, "spread_percent": 0.0});
        let error = (predicted as f64 / measured as f64 - 1.0) * 100.0;
        json!({"predicted": predicted, "measured": spread, "error_percent": error, "verdict": verdict})
    };
    let spread = json!({"median": 2_500_000, "least": 1, "most": 9, "spread_percent": 3.0});
    let size = |folio: &str, faults, memory| {
        json!({"folio": folio, "replayed_faults": 1, "faults": faults, "peak_rss_bytes": memory,
               "kernel_ns": spread, "run_ns": spread, "fell_back": 0, "exit_codes": [0]})
    };
    let program = json!({
        "schema": 1, "program": "sort", "program_version": "9.1", "command": ["sort", "a <b>.txt"],
        "recorded_kernel": "6.18.1", "recorded_faults": 41_000, "runs": 5, "stopped_at_exit": false,
        "sizes": [
            size("4K", figure(41_000, 40_900, "within"), figure(200 << 20, 200 << 20, "within")),
            size("64K", figure(3_000, 2_000, "missed"), figure(201 << 20, 202 << 20, "within-spread")),
        ],
        "advice": {"folio": "64K", "waste_percent": 0.5, "best": "4K", "longer_percent": 7.0, "verdict": "within-spread"},
        "machine": {"cpu": "a processor", "kernel": "6.18.1"}, "commit": "0123",
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("verified.json");
    let mut decided = program.clone();
    let first = json!({"folio": "2M", "turns": 40, "longer_percent": 0.5, "between_percent": [-1.5, 1.9]});
    decided["advice"]["run_off"] = json!({"against": [first]});
    decided["advice"]["verdict"] = json!("within");
    std::fs::write(&file, format!("{program}\n{decided}\n")).unwrap();
    let page = written(&[&file], folder.path());
    assert!(page.contains("2 of 4") && page.contains("4 of 4"), "{page}");
    assert!(page.contains("missed: faults of sort under 64K, +50.0 %"), "{page}");
    assert!(page.contains("+50.0 %") && page.contains("41\u{202f}000"));
    assert!(
        page.contains(
            "runs 7.0 % longer than the fastest, 4K. Turn by turn the runs differ too much to tell."
        )
    );
    let further =
        "2M came nearest: after 40 it takes +0.5 % longer, -1.5 to +1.9 %: it is within 2 % of each.";
    assert!(page.contains(further), "{page}");
    // A name from elsewhere is text.
    assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"));
    // Two runs of the program stand side by side, with what was measured, and of one run alone there is no such section.
    let [before, after] = ["before.json", "after.json"].map(|name| folder.path().join(name));
    let mut other = program.clone();
    other["sizes"] = json!([size("4K", figure(1, 12_345, "within"), figure(1, 77 << 20, "within"))]);
    std::fs::write(&before, program.to_string()).unwrap();
    std::fs::write(&after, other.to_string()).unwrap();
    let of_one = page;
    let page = written(&[&before, &after], folder.path());
    open(&[&of_one, &page], folder.path());
    let section = page.split("<section>").find(|section| section.contains("sort side by side</h1>")).unwrap();
    assert_eq!(section.matches("<svg").count(), 1, "{section}");
    let (head, table) = section.split_once("<table").unwrap();
    for word in ["before.json", "after.json"] {
        assert!(head.contains(word) && table.contains(word), "{word}: {section}");
    }
    for cells in [
        "<td>4K</td><td>40\u{202f}900</td><td>200.0 MiB</td><td>–</td><td>12\u{202f}345</td><td>77.0 MiB</td><td>–</td>",
        "<td>64K</td><td>2\u{202f}000</td><td>202.0 MiB</td><td>–</td><td>–</td><td>–</td><td>–</td>",
    ] {
        assert!(table.contains(cells), "{cells}: {table}");
    }
    // The marks of both.
    let plot = head.split("<svg").nth(1).unwrap();
    assert!(plot.contains("\"#000011\"") && plot.contains("\"#000012\""), "{plot}");
    assert!(!written(&[&before], folder.path()).contains("side by side"));
    other["command"] = json!(["sort", "another.txt"]);
    std::fs::write(&after, other.to_string()).unwrap();
    assert!(!written(&[&before, &after], folder.path()).contains("side by side"), "not the same work");
}

#[test]
fn advice_shows_memory_over_time_and_faults_by_policy() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/gcc.qtrace");
    let folder = tempfile::tempdir().unwrap();
    // The same on every machine: what is lacking here would be measured.
    let prices = folder.path().join("prices.json");
    let each = json!({
        "4": 500, "16": 600, "32": 900, "64": 1400, "128": 2400, "256": 4500, "512": 9000, "1024": 20_000, "2048": 60_000,
    });
    let saved = json!({"version": 1, "kernel": "6.18", "cpu": "one", "fault_ns": each});
    std::fs::write(&prices, saved.to_string()).unwrap();
    let advice_beside = |baseline: &str| -> serde_json::Value {
        let mut advise = Command::new(env!("CARGO_BIN_EXE_quire"));
        advise.args(["advise", "--format", "json", "--baseline", baseline]);
        advise.args([
            "--khugepaged",
            "scan_sleep_millisecs=10",
            "--memory-high",
            "40M",
            "--fragmentation",
            "50",
        ]);
        let output = advise.arg("--prices").arg(&prices).arg(&trace).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let file = folder.path().join("advice.json");
    let mut advice = advice_beside("4K");
    // Neither the baseline nor the advised set starts khugepaged.
    assert_eq!(advice["khugepaged"]["sets"], json!([]));
    advice["khugepaged"] = advice_beside("2M")["khugepaged"].take();
    // The recording has no shared memory, and all its requests find folios.
    let set = |folio: &str, faults| json!({"folio": folio, "faults": faults, "memory_bytes": 8 << 20});
    advice["shmem"] = json!({
        "names": ["/memfd:a <b>"], "chosen": "64K", "sets": [set("4K", 2048), set("64K", 128)],
        "do": ["echo within_size > shmem_enabled"],
    });
    let bound = |faults| json!({"faults": faults, "time_ns": 2e6});
    let bounds = json!({"folio": "2M", "falls_back": bound(2000), "waits": bound(4), "waiting_faults": 3});
    advice["defrag"] = json!({"sets": [bounds]});
    // Nor does a plan for some mappings save much more than one set for all.
    let asking: Vec<_> = advice["sets"][4]["mappings"].as_array().unwrap()[..2].to_vec();
    advice["plan"] = json!({
        "folio": "64K", "mappings": asking, "faults": 1000, "time_ns": 1e6, "memory_bytes": 8 << 20,
        "wasted_bytes": 1 << 19, "do": ["echo madvise > hugepages-64kB/enabled"], "undo": ["echo never > <x>"],
    });
    std::fs::write(&file, advice.to_string()).unwrap();
    let page = show(&[&file], folder.path());
    let words = [
        "/memfd:a &lt;b&gt;. 4K: 2\u{202f}048 faults, 8.0 MiB. 64K: 128 faults, 8.0 MiB.",
        "echo within_size",
        "2M: 2\u{202f}000 faults in 2.00 ms if nothing is compacted, or 4 faults in 2.00 ms of which 3 wait",
        "Folio sizes for gcc",
        "% faults",
        "echo always",
        "Where the time is saved",
        "cc1: heap",
        "2M leaves",
        "Other policies",
        "First touches by address and time",
        "pages touched for the first time, by the recorded faults",
        "pages of code are used",
        "40.0 MiB: exceeded under",
        "Better: 64K for some mappings alone, listed below: ",
        "memory at the peak ",
        " → 8.0 MiB, 6.2 % of it never touched.",
        "Folios of 64K for these mappings alone",
        "<code>madvise(MADV_HUGEPAGE)</code>",
        "echo madvise &gt; hugepages-64kB/enabled",
        "echo never &gt; &lt;x&gt;",
        "50 % of free memory is in pieces below 2 MiB",
    ];
    words.into_iter().for_each(|word| assert!(page.contains(word), "no `{word}` in {page}"));
    // Memory, what of it is untouched or in page tables, policies, processes, first touches, and khugepaged
    // under 2M.
    assert_eq!(page.matches("<svg").count(), 6);
}

/// As two tasks of an array do.
#[test]
fn shards_of_a_folder_of_recordings_make_one_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let (recordings, results) = (folder.path().join("recordings"), folder.path().join("results"));
    std::fs::create_dir(&recordings).unwrap();
    for name in ["one", "two", "three"] {
        std::fs::copy(root.join("traces/gcc.qtrace"), recordings.join(name).with_extension("qtrace"))
            .unwrap();
    }
    for task in ["1", "2"] {
        let mut script = Command::new("bash");
        script.arg(root.join("deploy/advise.slurm")).arg(&recordings).arg(&results);
        script.env("QUIRE", env!("CARGO_BIN_EXE_quire"));
        let output =
            script.env("SLURM_ARRAY_TASK_ID", task).env("SLURM_ARRAY_TASK_COUNT", "2").output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    // The second task alone is an array of one: it has its share when it is told how many there were.
    std::fs::remove_file(results.join("advice-2-of-2.json")).unwrap();
    for (tasks, code) in [(None, 2), (Some("2"), 0)] {
        let mut script = Command::new("bash");
        script.arg(root.join("deploy/advise.slurm")).arg(&recordings).arg(&results).args(tasks);
        script.env("QUIRE", env!("CARGO_BIN_EXE_quire")).env("SLURM_ARRAY_TASK_ID", "2");
        let output =
            script.env("SLURM_ARRAY_TASK_COUNT", "1").env("SLURM_ARRAY_TASK_MAX", "2").output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    }
    let lines = |name: &str| std::fs::read_to_string(results.join(name)).unwrap().lines().count();
    assert_eq!([lines("advice-1-of-2.json"), lines("advice-2-of-2.json")], [2, 1]);
    // Where there are more shards than recordings, some have nothing to say.
    std::fs::write(results.join("advice-9-of-9.json"), "").unwrap();
    let page = show(&[&results], folder.path());
    assert_eq!(page.matches("Folio sizes for gcc</h1>").count(), 3);
}

/// The value behind a key of the Job.
fn value<'a>(job: &'a str, key: &str) -> &'a str {
    let line = job.lines().find_map(|line| line.trim_start_matches(['-', ' ']).strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key}")).trim().trim_matches('"')
}

/// As the pods of an indexed Job do: their script, with their variables, on folders in place of their volumes.
#[test]
fn pods_of_a_job_make_one_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let job = std::fs::read_to_string(root.join("deploy/advise-job.yaml")).unwrap();
    assert_eq!((value(&job, "apiVersion:"), value(&job, "kind:")), ("batch/v1", "Job"));
    assert_eq!(value(&job, "completionMode:"), "Indexed", "else the pods do not know their numbers");
    let (pods, env) = (value(&job, "completions:"), job.split_once("- name: TASKS").unwrap().1);
    assert_eq!((value(env, "value:"), value(&job, "parallelism:")), (pods, pods));
    assert_eq!(value(&job, "command:"), r#"["/bin/sh", "-euc"]"#);
    let (_, block) = job.split_once("- |\n").unwrap();
    let depth = block.len() - block.trim_start().len();
    let lines = block.lines().take_while(|line| line.len() - line.trim_start().len() >= depth);
    let folder = tempfile::tempdir().unwrap();
    let path_of = |volume: &str| folder.path().join(volume).display().to_string();
    let mounted = |volume: &str| {
        let mounts = job.split_once(&format!("{{ name: {volume}, mountPath: ")).unwrap().1;
        mounts.split([',', ' ', '}']).next().unwrap().to_owned()
    };
    let mut script = lines.map(|line| &line[depth..]).collect::<Vec<_>>().join("\n");
    for volume in ["recordings", "results"] {
        std::fs::create_dir(folder.path().join(volume)).unwrap();
        let path = mounted(volume);
        assert!(script.contains(&path), "{path} is mounted and not used");
        script = script.replace(&path, &path_of(volume));
    }
    for name in ["one", "two", "three"] {
        let to = folder.path().join("recordings").join(name).with_extension("qtrace");
        std::fs::copy(root.join("traces/gcc.qtrace"), to).unwrap();
    }
    let quire = Path::new(env!("CARGO_BIN_EXE_quire")).parent().unwrap().display().to_string();
    let pod = |index: &str| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-euc", &script]).env("PATH", format!("{quire}:/usr/bin:/bin"));
        shell.env("TASKS", "2").env("JOB_COMPLETION_INDEX", index).output().unwrap()
    };
    for index in ["0", "1"] {
        let output = pod(index);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let results = folder.path().join("results");
    let lines = |name: &str| std::fs::read_to_string(results.join(name)).unwrap().lines().count();
    assert_eq!([lines("advice-1-of-2.json"), lines("advice-2-of-2.json")], [2, 1]);
    // The page that the tasks of an array have, which a browser has shown.
    let page = written(&[&results], folder.path());
    assert_eq!(page.matches("Folio sizes for gcc</h1>").count(), 3);
    // One that fails leaves no file that counts, and the Job starts it again.
    std::fs::remove_dir_all(folder.path().join("recordings")).unwrap();
    std::fs::remove_file(results.join("advice-1-of-2.json")).unwrap();
    assert!(!pod("0").status.success());
    assert!(!results.join("advice-1-of-2.json").exists());
}

#[test]
fn a_file_of_something_else_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for (script_file, reason) in [("", "is empty"), ("[1]\n", "none of them wrote"), ("x", "no JSON object")]
    {
        let file = folder.path().join("other.json");
        std::fs::write(&file, script_file).unwrap();
        let mut report = Command::new(env!("CARGO_BIN_EXE_quire"));
        let output = report.args(["report", "html"]).arg(&file).current_dir(&folder).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("other.json") && said.contains(reason), "{said}");
        assert!(!folder.path().join("report.html").exists());
    }
}
