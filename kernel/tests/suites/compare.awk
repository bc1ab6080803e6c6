# Prints what Linux (the first file) and Quire (the second) answered, and fails when a test passes on Linux only
# without a row in the page of differences: "| `suite name` | reason |".

function verdict(suite, status) {
    if (status == "0") return "pass"
    if ((suite == "ltp" && status == "32") || (suite == "selftests" && status == "4")) return "skip"
    if (suite == "libhugetlbfs" && status == "1") return "skip"
    return "fail " status
}

BEGIN {
    # A test in the page's other tables must pass: its defect is mended.
    while ((getline line < page) > 0) {
        if (line ~ /^## /) explains = line ~ /pass on Linux only/
        if (explains && split(line, part, "`") >= 3 && line ~ /^\| `/) listed[part[2]] = 1
    }
}
FILENAME == ARGV[1] { linux[$1 " " $2] = verdict($1, $3); next }
{
    name = $1 " " $2
    if (!(name in linux)) next
    us = verdict($1, $3); them = linux[name]
    if (them == "pass" && us == "pass") class = "pass on both"
    else if (them == "pass") class = (name in listed) ? "Linux only, listed" : "LINUX ONLY"
    else if (us == "pass") class = "Quire only"
    else if (them == "skip") class = "skipped on Linux"
    else class = "fails on Linux"
    suites[$1] = 1
    count[$1, class]++
    if (class == "LINUX ONLY") failed = 1
    if (class != "pass on both") printf "%-22s %-50s Linux %-9s Quire %s\n", class, name, them, us
}
END {
    split("pass on both;Linux only, listed;LINUX ONLY;Quire only;skipped on Linux;fails on Linux", classes, ";")
    printf "\n%-14s", ""
    for (i = 1; i <= 6; i++) printf "%20s", classes[i]
    print ""
    for (suite in suites) {
        printf "%-14s", suite
        for (i = 1; i <= 6; i++) printf "%20d", count[suite, classes[i]]
        print ""
    }
    exit failed
}
