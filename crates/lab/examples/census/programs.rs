//! The programs that are recorded: one for each kind that people run.

/// A program, as a line for `sh`.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The command without which the program is left out.
    pub(crate) needs: &'static str,
    /// What `sh` runs, in an empty directory that holds the inputs of `traces/programs`.
    pub(crate) script: &'static str,
}

const fn program(name: &'static str, needs: &'static str, script: &'static str) -> Program {
    Program { name, needs, script }
}

/// Each ends by itself, and sends nothing beyond this machine.
pub(crate) const PROGRAMS: &[Program] = &[
    program("python", "python3", "exec python3 work.py"),
    program(
        "perl",
        "perl",
        r#"exec perl -e 'my %h; $h{$_ % 50000} .= "x" x 40 for 1..400000; print scalar(keys %h)'"#,
    ),
    program("sqlite3", "sqlite3", "exec sqlite3 table.db '.read table.sql'"),
    program(
        "redis",
        "redis-server",
        "redis-server --port 0 --unixsocket ./s --save '' --appendonly no >log & \
         until redis-cli -s ./s ping >ping 2>&1; do sleep 0.1; done; \
         redis-benchmark -q -s ./s -n 50000 -r 50000 -d 512 -c 10 -P 8 -t set,get,lpush; \
         redis-cli -s ./s shutdown nosave; wait",
    ),
    program("node", "node", "exec node startup.js"),
    program("java", "java", "exec java -Xmx256m Startup.java"),
    program(
        "go",
        "go",
        "export GOCACHE=$PWD/cache GOFLAGS=-mod=mod HOME=$PWD; \
         printf 'package main\\nimport \"fmt\"\\nfunc main() { fmt.Println(len(make([]byte, 1<<26))) }\\n' >m.go; \
         exec go run m.go",
    ),
    program(
        "rust",
        "rustc",
        "printf 'fn main() { println!(\"{}\", vec![1u8; 1 << 26].iter().map(|&b| b as u64).sum::<u64>()) }' >m.rs; \
         rustc -O m.rs && ./m",
    ),
    program(
        "chromium",
        "chromium",
        "exec chromium --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/profile --dump-dom \
         'data:text/html,<p>text' 2>log",
    ),
    program(
        "container",
        "bwrap",
        "exec bwrap --ro-bind / / --dev /dev --proc /proc --unshare-all sh forks.sh",
    ),
    program("make -j4", "make", "mkdir build; exec make -j4 -f build.mk OUT=build"),
    program(
        "1000 threads",
        "python3",
        "exec python3 -c 'import threading as t; b = t.Barrier(1000)\n\
         def f():\n b.wait(); bytearray(1 << 18)\n\
         s = [t.Thread(target=f) for _ in range(1000)]\n\
         [x.start() for x in s]; [x.join() for x in s]'",
    ),
];
