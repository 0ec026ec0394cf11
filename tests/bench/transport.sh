#!/bin/sh
# The tcp transport beside iperf3 over loopback with as many streams. Takes about half a minute.
# usage: transport.sh BENCH_BINARY [STREAMS] [MIB]
set -eu
bench=${1:?usage: transport.sh BENCH_BINARY [STREAMS] [MIB]}
streams=${2:-4}
mib=${3:-512}
command -v iperf3 >/dev/null || { echo "transport.sh needs iperf3: apt-get install iperf3" >&2; exit 1; }

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

# Starts a server on a free port from 5201 on; sets server and port.
start_server() {
  port=5201
  while [ $port -lt 5221 ]; do
    iperf3 -s -1 -p $port -B 127.0.0.1 --forceflush >"$work/server" 2>&1 &
    server=$!
    # It says that it listens, or it ends because the port is taken.
    for _ in $(seq 100); do
      grep -qs listening "$work/server" && return
      kill -0 $server 2>/dev/null || break
      sleep 0.05
    done
    kill $server 2>/dev/null || true
    port=$((port + 1))
  done
  echo "no free port from 5201 to 5220" >&2
  exit 1
}

# With -J, iperf3 exits with 0 whatever happens: what it wrote decides.
iperf_once() {
  start_server
  timeout 20 iperf3 -c 127.0.0.1 -p $port -P "$streams" -t 2 -J >"$work/iperf" 2>&1 || true
  kill $server 2>/dev/null || true
  wait $server 2>/dev/null || true
  server=
  python3 - "$work/iperf" <<'PY'
import json, sys
result = json.load(open(sys.argv[1]))
if "error" in result:
    sys.exit(f"iperf3: {result['error']}")
print(result["end"]["sum_received"]["bits_per_second"] / 8e9)
PY
}

# In turn, so that a busy minute of the machine strikes both.
: >"$work/iperf_rates"
: >"$work/bench.jsonl"
for _ in 1 2; do
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
