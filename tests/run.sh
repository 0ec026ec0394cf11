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

# Under AddressSanitizer and UndefinedBehaviorSanitizer: those, and the tests of what goes through gRPC, reads bytes from
# outside or computes addresses. (All tests can be run under it: cmake --preset asan, ctest --preset asan.)
hardened=("${threaded[@]}" server_test coordinator_session_test coordinator_client_test agent_test coordinator_test
  coordinator_store_test rank_client_test convert_test safetensors_test prepare_test shards_test values_test
  float_convert_test plan_test planner_test planner_property_test placement_test mapped_region_test plan_part_test
  transfer_digest_test conversion_test unix_socket_test transport_wire_test transport_conformance_test verbs_unit_test)

sanitized() {  # PRESET TEST...
  build "$@" || return 1
  echo "== tests under $1 ($(date +%T))"
  ctest --preset "$1" -j2 -R "^($(IFS='|'; echo "${*:2}"))\$"
}

status=0
if [ -z "$quick" ]; then
  sanitized asan "${hardened[@]}" || status=1
  sanitized tsan "${threaded[@]}" || status=1
fi
build release
echo "== tests ($(date +%T))"
ctest --preset release -j2 || status=1
[ $status = 0 ] || echo "some tests failed; see above"
exit $status
