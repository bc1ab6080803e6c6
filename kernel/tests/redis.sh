#!/bin/busybox sh
# redis-server with its own programs, in the kernel: benchmark, a snapshot by a forked child while clients write, and a
# second server that reads the snapshot. Prints a line for each step. The status is 0 if all is well.
#
#   redis.sh [KEYS [BYTES]]    # what the server holds while it forks
set -u
keys="${1:-100000}"
bytes="${2:-2000}"
busybox=/bin/busybox
data=/tmp/redis
socket="$data/socket"
$busybox mkdir -p "$data"
server=

fail() {
    echo "FAILED  $*"
    [ -z "$server" ] || kill -9 "$server"
    exit 1
}

# Starts a server and waits until it answers.
start() {
    redis-server --save "" --port 6379 --daemonize no --dir "$data" --unixsocket "$socket" --rdbcompression no \
        --enable-debug-command yes --loglevel warning "$@" &
    server=$!
    tries=0
    until [ "$(redis-cli ping 2>/dev/null)" = PONG ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || fail "the server does not answer"
        $busybox usleep 100000
    done
}

stop() {
    redis-cli shutdown nosave
    wait "$server" || fail "the server ended with status $?"
    server=
}

# A field of INFO.
info() {
    redis-cli info | $busybox tr -d '\r' | $busybox sed -n "s/^$1://p"
}

expect() {
    [ "$2" = "$3" ] || fail "$1: $2 instead of $3"
    echo "ok      $1: $2"
}

start
echo "ok      the server answers"
redis-benchmark -q -n 2000 >"$data/benchmark" 2>&1 || fail "redis-benchmark: $($busybox cat "$data/benchmark")"
rows="$($busybox tr '\r' '\n' <"$data/benchmark" | $busybox grep -c 'requests per second, p50')"
[ "$rows" -ge 19 ] || fail "redis-benchmark measured $rows of its commands"
echo "ok      redis-benchmark: $rows commands"
redis-benchmark -q -n 2000 -s "$socket" -t set,get -P 16 >"$data/benchmark" 2>&1 || fail "over a unix socket"
echo "ok      redis-benchmark over a unix socket"
redis-cli flushall >/dev/null
expect "keys made" "$(redis-cli debug populate "$keys" key "$bytes")" OK

# A hundred keys of the clients, each with a value, so that their writes make no new ones.
at=0
while [ $at -lt 100 ]; do
    $busybox printf 'SET key:%012d before\r\n' $at
    at=$((at + 1))
done | redis-cli --pipe >/dev/null || fail "redis-cli --pipe"
expect "keys held" "$(redis-cli dbsize)" $((keys + 100))
used="$(info used_memory)"
[ "$used" -gt $((keys * bytes)) ] || fail "the server holds $used bytes"
echo "ok      the server holds $((used >> 20)) MiB"

redis-cli bgsave >/dev/null
redis-benchmark -q -n 20000 -r 100 -t set -d 64 >"$data/benchmark" 2>&1 || fail "redis-benchmark while a child saves"
tries=0
while [ "$(info rdb_bgsave_in_progress)" = 1 ]; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "the snapshot does not end"
    $busybox usleep 100000
done
expect "snapshot while clients write" "$(info rdb_last_bgsave_status)" ok
size="$($busybox stat -c %s "$data/dump.rdb")"
[ "$size" -gt $((keys * bytes)) ] || fail "the snapshot has $size bytes"
echo "ok      fork took $(info latest_fork_usec) us, copies of pages $(($(info rdb_last_cow_size) >> 10)) KiB"
digest="$(redis-cli debug digest-value key:0 key:7 "key:$((keys - 1))")"
stop

start
expect "keys of the snapshot" "$(redis-cli dbsize)" $((keys + 100))
[ "$(redis-cli debug digest-value key:0 key:7 "key:$((keys - 1))")" = "$digest" ] || fail "values of the snapshot"
echo "ok      values of the snapshot"
stop
$busybox rm -r "$data"
