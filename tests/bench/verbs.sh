#!/bin/bash
# The verbs transport beside ib_write_bw (package perftest): same device, message size and number of queue pairs,
# taking turns. Run it where there is an RDMA device, or in the virtual machine of tests/rdma_vm:
#   tests/rdma_vm/guest.py run build/rdma_vm --timeout 300 -- tests/bench/verbs.sh build/release/bench/verbs_bench
# usage: verbs.sh BENCH_BINARY [DEVICE] [MIB] [QUEUE_PAIRS] [ROUNDS]
set -euo pipefail
bench=${1:?usage: verbs.sh BENCH_BINARY [DEVICE] [MIB] [QUEUE_PAIRS] [ROUNDS]}
device=${2:-rxe0} mib=${3:-64} pairs=${4:-4} rounds=${5:-3}
command -v ib_write_bw >/dev/null || { echo "verbs.sh needs ib_write_bw: apt-get install perftest" >&2; exit 1; }
chunk=1048576
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

write_bw() {  # prints MiB/s
  # The GID that the transport chooses in the guest: the first IPv4 one.
  local args=(-d "$device" -x 1 -s $chunk -q "$pairs" -n $((mib / pairs)) -F --report_gbits -p 18515)
  ib_write_bw "${args[@]}" >"$work/server" 2>&1 &
  server=$!
  local tries=0
  until grep -q -i waiting "$work/server" || ss -ltn 2>/dev/null | grep -q :18515; do
    [ $((tries += 1)) -lt 200 ] && kill -0 $server || { cat "$work/server" >&2; exit 1; }
    sleep 0.1
  done
  timeout 120 ib_write_bw "${args[@]}" 127.0.0.1 >"$work/client" 2>&1 || { cat "$work/client" >&2; exit 1; }
  wait $server || true
  server=
  # columns: bytes, iterations, peak, average (Gbit/s), message rate
  awk -v chunk=$chunk '$1 == chunk { print $4 * 1e9 / 8 / 1048576 }' "$work/client"
}

for _ in $(seq "$rounds"); do
  write_bw >>"$work/theirs"
  "$bench" --tuning "nics=$device,queue_pairs=$pairs,chunk_bytes=$chunk,ack_timeout=18" --mib "$mib" --runs 1 |
    sed 's/.*"mib_per_s": \([0-9.]*\).*/\1/' >>"$work/ours"
done
paste "$work/theirs" "$work/ours" | awk '
  { printf "ib_write_bw %.1f MiB/s, verbs %.1f MiB/s\n", $1, $2; theirs += $1; ours += $2 }
  END { printf "verbs / ib_write_bw = %.2f over %d rounds\n", ours / theirs, NR }'
