#!/bin/sh
# Records the bundled traces anew, and their rows in README.md. Run as root in the root of the repository, with
# `quire` built in release mode and the Debian packages python3, gcc, make, sqlite3, redis-server, redis-tools,
# nodejs and default-jre-headless installed.
#
#   traces/record.sh [NAME…]
set -eu

quire=$(realpath "${QUIRE:-target/release/quire}")
traces=$(cd "$(dirname "$0")" && pwd)
# Always the same place, so that it is the same in the recorded commands.
work=/tmp/quire-traces
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
cp -r "$traces/programs" "$work"
cd "$work"
names=$*

wanted() {
    [ -z "$names" ] && return 0
    case " $names " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

# record NAME PROGRAM VERSION COMMAND…
record() {
    name=$1 program=$2 version=$3
    shift 3
    "$quire" record -o "$traces/$name.qtrace" --name "$program" --program-version "$version" -- "$@" \
        >"$work/output" 2>"$work/summary" || { cat "$work/output" "$work/summary"; exit 1; }
    cat "$work/summary"
    # First line: `PATH: EVENTS events in SECONDS s, BYTES bytes (…)`.
    row=$(sed -n "s/^.*: \([0-9]*\) events in \([0-9.]*\) s, \([0-9]*\) bytes.*/\1 | \2 | \3/p" "$work/summary")
    grep -v "^| \`$name.qtrace\`" "$traces/README.md" >"$work/table"
    echo "| \`$name.qtrace\` | $program $version | \`$(echo "$*" | sed "s,--save  ,--save '' ,")\` | $row |" >>"$work/table"
    { grep -v '^| `' "$work/table"; grep '^| `' "$work/table" | sort; } >"$traces/README.md"
}

version_of() {
    dpkg-query -W -f '${Version}' "$1"
}

if wanted python; then
    record python python3 "$(version_of python3.11)" /usr/bin/python3 work.py
fi
if wanted gcc; then
    record gcc gcc "$(version_of gcc-12)" gcc -O2 -c -o allocator.o allocator.c
fi
if wanted sqlite; then
    record sqlite sqlite3 "$(version_of sqlite3)" sqlite3 table.db '.read table.sql'
fi
if wanted redis; then
    # The client runs outside: only the server is recorded.
    {
        until redis-cli -p 16379 ping >ping 2>&1; do sleep 0.1; done
        redis-benchmark -q -p 16379 -n 100000 -r 100000 -d 512 -c 10 -P 8 -t set,get,lpush,lrange_100 >benchmark
        redis-cli -p 16379 flushall >flushed
        redis-cli -p 16379 shutdown nosave
    } &
    record redis redis-server "$(version_of redis-server)" \
        redis-server --bind 127.0.0.1 --port 16379 --save '' --appendonly no
    wait
fi
if wanted node; then
    record node node "$(node --version)" node startup.js
fi
if wanted java; then
    record java java "$(java --version | sed -n '1s/^[^ ]* \([^ ]*\).*/\1/p')" java -Xmx256m Startup.java
fi
if wanted forks; then
    record forks dash "$(version_of dash)" dash forks.sh
fi
if wanted make; then
    mkdir build
    record make make "$(version_of make)" make -j2 -f build.mk OUT=build
fi
