# Some hundred forks: subshells, command substitutions, pipelines, programs.
total=0
for round in $(seq 1 60); do
    name=$(printf 'round %03d' "$round" | tr ' ' '_')
    count=$(echo "$name" | wc -c)
    (
        inner=$((round * count))
        exit $((inner % 7))
    ) || total=$((total + 1))
    case $round in *0) ls / | sort -r | head -n 3 >/dev/null ;; esac
done
echo "$total"
