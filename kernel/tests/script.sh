# A script of the kind that sets up a small system, for `busybox sh` and `bash`: each step checks what it got. It is run
# on Linux and in the kernel by `kernel/test-programs` and ends with "script: N steps". Status 1: a step failed.
#
#   sh script.sh DIRECTORY     # an empty directory for its files
set -u
cd "$1" || exit 1
steps=0
failed=0

# check NAME EXPECTED GOT
check() {
    steps=$((steps + 1))
    if [ "$2" != "$3" ]; then
        failed=1
        printf 'FAILED %s\nexpected: %s\ngot:      %s\n' "$1" "$2" "$3"
    fi
}

# status NAME EXPECTED COMMAND...
status() {
    name=$1
    want=$2
    shift 2
    "$@" >/dev/null 2>&1
    check "$name" "$want" "$?"
}

# --- words, arithmetic, functions
check arithmetic 42 $(((3 + 4) * 6))
check hexadecimal 255 $((0xff))
check shift 1024 $((1 << 10))
check default none "${unset_variable:-none}"
long=abcdefgh
check length 8 "${#long}"
check suffix abc "${long%defgh}"
path=/a/b/c.txt
check base c.txt "${path##*/}"
check parent /a/b "${path%/*}"
factorial() {
    if [ "$1" -le 1 ]; then echo 1; else echo $(($1 * $(factorial $(($1 - 1))))); fi
}
check recursion 3628800 "$(factorial 10)"
count=0
while [ $count -lt 1000 ]; do count=$((count + 1)); done
check loop 1000 $count
case linux-6.1 in linux-*) kind=linux ;; *) kind=other ;; esac
check case linux $kind
set -- one "two words" three
check parameters 3 $#
check second "two words" "$2"
text=$(cat <<END
first line
second $((1 + 1))
END
)
check here-document "first line
second 2" "$text"

# --- statuses and signals
status true 0 true
status false 1 false
status not-found 127 no-such-command
touch plain
status not-executable 126 ./plain
status exit 7 sh -c 'exit 7'
status killed 143 sh -c 'kill -TERM $$'
check trap caught "$(sh -c 'trap "echo caught" USR1; kill -USR1 $$; wait')"
check exit-trap bye "$(sh -c 'trap "echo bye" EXIT; exit 0')"
sleep 100 &
sleeper=$!
kill $sleeper
wait $sleeper
check wait-for-killed 143 $?
status timeout 0 sh -c '! timeout 1 sleep 100'

# --- pipes, redirections, background jobs
check pipe 10 "$(seq 1 10 | wc -l | tr -d ' ')"
check long-pipe 500500 "$(seq 1 1000 | cat | cat | cat | awk '{ s += $1 } END { print s }')"
check broken-pipe 1 "$(yes | head -n 1 | wc -l | tr -d ' ')"
seq 1 5 >numbers
seq 6 9 >>numbers
check append 9 "$(wc -l <numbers | tr -d ' ')"
check standard-error error "$( (echo error >&2) 2>&1)"
exec 3>third
echo to-three >&3
exec 3>&-
check third to-three "$(cat third)"
{ echo a; echo b; } >group
check group "a b" "$(tr '\n' ' ' <group | sed 's/ $//')"
for job in 1 2 3 4 5 6 7 8; do
    (seq 1 $((job * 100)) | tail -n 1 >job.$job) &
done
wait
check jobs 3600 "$(cat job.* | awk '{ s += $1 } END { print s }')"
mkfifo queue
(echo through the queue >queue) &
check fifo "through the queue" "$(cat queue)"
wait
check process-id yes "$([ -d /proc/$$ ] && echo yes)"
check own-descriptor yes "$([ -e /proc/self/fd/0 ] && echo yes)"

# --- files
mkdir -p tree/a/b/c tree/d
echo deep >tree/a/b/c/file
ln tree/a/b/c/file tree/hard
ln -s a/b/c/file tree/soft
check hard-link deep "$(cat tree/hard)"
check soft-link deep "$(cat tree/soft)"
check read-link a/b/c/file "$(readlink tree/soft)"
check links 2 "$(stat -c %h tree/hard)"
chmod 640 tree/hard
check mode 640 "$(stat -c %a tree/a/b/c/file)"
mv tree/a/b tree/d/b
check moved deep "$(cat tree/d/b/c/file)"
status dangling 1 cat tree/soft
check found 3 "$(find tree -name 'f*' -o -name hard -o -name soft | wc -l | tr -d ' ')"
status not-empty 1 rmdir tree/d
cp -r tree copy
status same 0 diff -r tree/d copy/d
rm -r tree
status removed 1 [ -e tree ]
check glob "job.1 job.2 job.3" "$(echo job.[1-3])"
dd if=/dev/zero of=zeroes bs=1024 count=300 2>/dev/null
check size 307200 "$(stat -c %s zeroes)"
check zeroes 0 "$(tr -d '\000' <zeroes | wc -c | tr -d ' ')"
dd if=/dev/urandom of=random bs=4096 count=64 2>/dev/null
cp random again
status compare 0 cmp random again
printf x | dd of=again bs=1 seek=5000 conv=notrunc 2>/dev/null
check size-after-write 262144 "$(stat -c %s again)"
truncate -s 100 again
check truncated 100 "$(wc -c <again | tr -d ' ')"
touch -d '2020-01-02 03:04:05' dated
check date 2020-01-02 "$(date -r dated +%Y-%m-%d)"
status newer 0 [ random -nt dated ]
status full 1 sh -c 'echo x >/dev/full'
echo discarded >/dev/null
check null "" "$(cat /dev/null)"
tail -f numbers >followed &
follower=$!
sleep 1
echo more >>numbers
sleep 2
kill $follower
wait $follower 2>/dev/null
check follow more "$(tail -n 1 followed)"

# --- programs on text
printf 'pear 3\napple 1\nfig 2\n' >fruit
check sort "apple 1" "$(sort fruit | head -n 1)"
check numeric-sort "pear 3" "$(sort -k2 -n -r fruit | head -n 1)"
check grep fig "$(grep -o '^f[a-z]*' fruit)"
check no-match 0 "$(grep -c plum fruit)"
check sed "pear:3" "$(sed -n '1s/ /:/p' fruit)"
check awk 6 "$(awk '{ s += $2 } END { print s }' fruit)"
check cut "3 1 2" "$(cut -d' ' -f2 fruit | tr '\n' ' ' | sed 's/ $//')"
check unique 2 "$(printf 'a\na\nb\n' | uniq | wc -l | tr -d ' ')"
check arguments "a-b-c" "$(printf 'a\nb\nc\n' | xargs sh -c 'echo $0-$1-$2')"
check reversed cba "$(echo abc | rev)"
check checksum 900150983cd24fb0d6963f7d28e17f72 "$(printf abc | md5sum | cut -d' ' -f1)"
check big-sort 20000 "$(seq 20000 -1 1 | sort -n | tail -n 1)"
check dump "61 62 63" "$(printf abc | od -An -tx1 | sed 's/^ *//')"
mkdir packed
for number in 1 2 3 4 5; do seq 1 $((number * 1000)) >packed/$number; done
tar -cf packed.tar packed
tar -czf packed.tar.gz packed
mkdir unpacked
tar -xzf packed.tar.gz -C unpacked
status archive 0 diff -r packed unpacked/packed
check archived 6 "$(tar -tf packed.tar | wc -l | tr -d ' ')"
gzip -c random >random.gz
gzip -dc random.gz >random.back
status compressed 0 cmp random random.back

# --- many processes
count=0
for number in $(seq 1 50); do
    /bin/true && count=$((count + 1))
done
check fifty-programs 50 $count
check subshells 20 "$(for n in $(seq 1 20); do (echo $n); done | tail -n 1)"
check nested deep "$(sh -c 'sh -c "sh -c \"sh -c \\\"echo deep\\\"\""')"
check environment value "$(NAME=value sh -c 'echo $NAME')"
check directory "$(pwd)" "$(sh -c pwd)"
umask 027
touch masked
check umask 640 "$(stat -c %a masked)"
check limit 64 "$(ulimit -n 64; ulimit -n)"
status no-memory 2 sh -c 'ulimit -v 1000000000000000000000; exit 2'
check time yes "$([ "$(date +%s)" -gt 1000000000 ] && echo yes)"
check kernel Linux "$(uname -s)"
check memory yes "$([ "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)" -gt 1000 ] && echo yes)"
check mapped yes "$(grep -q stack /proc/self/maps && echo yes)"

echo "script: $steps steps"
exit $failed
