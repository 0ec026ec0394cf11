#!/usr/bin/env bash
# run.sh [TREE]: the GPU tests on a machine with a GPU, from a built tree (default: build/release), and a table of what
# the GPU code reaches. Libraries that the machine lacks may lie in TREE/lib. Ends 1 when something failed, 77 where
# there is no GPU.
set -uo pipefail
tree=$(realpath "${1:-$(dirname "$(realpath "$0")")/../../build/release}")
export LD_LIBRARY_PATH=$tree/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

if ! nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; then
  echo "run.sh: no GPU here (nvidia-smi does not answer)" >&2
  exit 77
fi
failed=0
program() {  # NAME: where it is in the tree
  local found
  found=$(find "$tree" -type f -name "$1" -perm -u+x -print -quit)
  [ -n "$found" ] || { echo "run.sh: $1 is not in $tree: build it first" >&2; exit 1; }
  echo "$found"
}
step() {  # NAME COMMAND...
  echo "== $1"
  shift
  timeout 300 "$@" || { failed=1; echo "run.sh: FAILED: $*" >&2; }
}
twins=$(program gpu_twins_test) device=$(program gpu_device_test) bench=$(program gpu_bench) || exit 1
step "what the kernels compute, on the CPU" "$twins" --gtest_brief=1
step "the kernels against the CPU, bit for bit" "$device"
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck; do
    step "compute-sanitizer $tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$device" \
      --gtest_brief=1 --gtest_filter='-*ManyThreads*'
  done
else
  echo "== compute-sanitizer is not installed: not run"
fi
step "rates" "$bench"
exit $failed
