#!/bin/sh
# The tcp transport beside iperf3 over loopback with as many streams. Takes about half a minute.
# usage: transport.sh BENCH_BINARY [STREAMS] [MIB]
set -eu
bench=${1:?usage: transport.sh BENCH_BINARY [STREAMS] [MIB]}
streams=${2:-4}
mib=${3:-512}
command -v iperf3 >/dev/null || { echo "transport.sh needs iperf3: apt-get install iperf3" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

iperf_once() {
  # A free port is found by trying; -1: the server ends after one test.
  port=5201
  while :; do
    iperf3 -s -1 -p "$port" -B 127.0.0.1 >"$work/server" 2>&1 &
    server=$!
    tries=0
    while [ $tries -lt 50 ] && kill -0 $server 2>/dev/null; do
      if iperf3 -c 127.0.0.1 -p "$port" -P "$streams" -t 3 -J >"$work/iperf" 2>/dev/null; then
        wait $server || true
        python3 -c "
import json, sys
print(json.load(open(sys.argv[1]))['end']['sum_received']['bits_per_second'] / 8e9)" "$work/iperf"
        return
      fi
      tries=$((tries + 1))
    done
    kill $server 2>/dev/null || true
    wait $server 2>/dev/null || true
    port=$((port + 1))
    [ $port -lt 5221 ] || { echo "no free port from 5201 to 5220" >&2; exit 1; }
  done
}

# In turn, so that a busy minute of the machine strikes both.
: >"$work/iperf_rates"
: >"$work/bench.jsonl"
for _ in 1 2 3; do
  iperf_once >>"$work/iperf_rates"
  "$bench" --only tcp --json --runs 3 --streams "$streams" --mib "$mib" | tr -d '\n' >>"$work/bench.jsonl"
  echo >>"$work/bench.jsonl"
done
python3 - "$work/iperf_rates" "$work/bench.jsonl" "$streams" <<'PY'
import collections, json, statistics, sys
iperf = statistics.median(float(line) for line in open(sys.argv[1]))
rates = collections.OrderedDict()
for line in open(sys.argv[2]):
    for row in json.loads(line):
        rates.setdefault((row["contest"], row["entry"]), []).append(row["gb_per_s"])
print(f"{'iperf3 -P ' + sys.argv[3]:48} {iperf:6.2f} GB/s")
for (contest, entry), values in rates.items():
    rate = statistics.median(values)
    print(f"{contest + ': ' + entry:48} {rate:6.2f} GB/s  {rate / iperf:5.2f} of iperf3")
PY
