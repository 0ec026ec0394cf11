#!/usr/bin/env bash
# run.sh [--quick]: installs what is missing, builds, and runs every test; ends with ctest's summary.
#   --quick   the release build's tests only, without the sanitizer builds
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
quick=
[ "${1:-}" = --quick ] && quick=1

deploy/install-packages.sh deploy/packages.txt tests/packages.txt

build() {  # PRESET [TARGET...]
  echo "== building $1 ($(date +%T))"
  deploy/build.sh "$1" ON "${@:2}"
}

# Under ThreadSanitizer: the tests of what runs several threads. Those that go through gRPC are not among them: Debian's
# gRPC is not instrumented, so the order that it makes is not seen.
threaded=(mutex_test parallel_test thread_pool_test fd_receiver_test rank_table_test sync_receive_test executor_test
  executor_failure_test transport_tcp_test transport_faulty_test coordinator_registry_test coordinator_sync_test
  coordinator_sync_failure_test work_pool_test)

sanitized() {  # PRESET SELECTION... [-- TARGET...]
  local preset=$1 selection=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    selection+=("$1")
    shift
  done
  build "$preset" "${@:2}" || return 1
  echo "== tests under $preset ($(date +%T))"
  ctest --preset "$preset" -j2 "${selection[@]}"
}

status=0
if [ -z "$quick" ]; then
  # Under AddressSanitizer and UndefinedBehaviorSanitizer: every unit test.
  sanitized asan -LE 'integration|rdma_vm' || status=1
  sanitized tsan -R "^($(IFS='|'; echo "${threaded[*]}"))\$" -- "${threaded[@]}" || status=1
fi
build release
echo "== tests ($(date +%T))"
ctest --preset release -j2 || status=1
[ $status = 0 ] || echo "some tests failed; see above"
exit $status
