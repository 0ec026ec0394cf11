#!/bin/bash
# with_loss.sh LOSS DEVICE... -- PROGRAM ARG...: in the guest, runs a program while packets get lost; fails too if
# none was.
set -euo pipefail
loss=$1
shift
devices=()
while [ "$1" != -- ]; do
  devices+=("$1")
  shift
done
shift
modprobe sch_netem
for device in "${devices[@]}"; do tc qdisc add dev "$device" root netem loss "$loss"; done
"$@"
dropped=0
for device in "${devices[@]}"; do
  n=$(tc -s qdisc show dev "$device" | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p')
  dropped=$((dropped + n))
done
echo "with_loss: $dropped packets were lost"
[ "$dropped" -gt 0 ]
