# Compares the faults of a replay (the first file, JSON) and of the kernel (the second one, its log), by kind.
#
# Three things differ for a reason, and are allowed for:
#
# - Linux maps a page of code and one of data for its clock (vdso, vvar) in each program, which the replay takes for
#   anonymous memory. The kernel has no such pages.
# - An instruction that reads and writes memory is two accesses in QEMU: where it touches a page first, the kernel sees
#   `anon-zero` and `cow-copy`, a processor reports a write only, which is `anon`.
# - Whether a page comes from the page cache or from the pager depends on what ran before: the two kinds are compared
#   together.

function of_replay(field) {
    return match(json, "\"" field "\":(\\{\"count\":)?[0-9]+") ? number(substr(json, RSTART, RLENGTH)) : 0
}

function number(text) {
    sub(/.*:/, "", text)
    return text + 0
}

# The kernel's count lies between two, give or take two in a hundred and a few.
function compare(kind, least, most, few, got) {
    verdict = "ok"
    if (got < least * 0.98 - few || got > most * 1.02 + few) {
        verdict = "FAILED"
        failed = 1
    }
    printf "%-7s %-14s %-9s replay %s, kernel %d\n", verdict, name, kind, \
        least == most ? least : least " to " most, got
}

NR == FNR { json = json $0; next }

/\[quire\] faults of / {
    sub(/.*\[quire\] faults of /, "")
    sub(/\r$/, "")
    # Before the program there is the one that starts it.
    if (started) {
        programs++
        counts = $0
        sub(/.*: /, "", counts)
        kinds = split(counts, part, ", ")
        for (i = 1; i <= kinds; i++) {
            split(part[i], word, " ")
            kernel[word[1]] += word[2]
        }
    }
    if ($1 == "1" && $2 == "start:") started = 1
}

END {
    if (!programs || json == "") {
        print "FAILED  " name ": nothing was counted"
        exit 1
    }
    few = 2 * programs
    split("anon anon-zero cow-copy", anonymous, " ")
    for (i = 1; i <= 3; i++) {
        count = of_replay(anonymous[i])
        compare(anonymous[i], count, count, few, kernel[anonymous[i]])
    }
    count = of_replay("cow-reuse")
    compare("cow-reuse", count, count, 0, kernel["cow-reuse"])
    count = of_replay("file-minor") + of_replay("file-major")
    compare("file", count, count, 2, kernel["file-minor"] + kernel["file-major"])
    count = of_replay("signal")
    compare("signal", count, count + of_replay("faults_given_up"), 0, kernel["signal"])
    exit failed
}
