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

# Under ThreadSanitizer: the tests of what runs several threads. The others have one, and would only take time.
threaded=(mutex_test server_test parallel_test thread_pool_test fd_receiver_test rank_table_test sync_receive_test
  executor_test executor_failure_test agent_test coordinator_session_test transport_tcp_test transport_faulty_test
  coordinator_test coordinator_registry_test coordinator_sync_test coordinator_sync_failure_test rank_client_test
  coordinator_client_test emulated_rank_test work_pool_test verbs_fake_test)

status=0
if [ -z "$quick" ]; then
  build asan
  echo "== tests under AddressSanitizer and UndefinedBehaviorSanitizer ($(date +%T))"
  # The runs over several machines and the virtual machine are timed for uninstrumented programs.
  ctest --preset asan -E 'integration_(run|hosts)|rdma_vm' -j2 || status=1
  build tsan "${threaded[@]}"
  echo "== tests under ThreadSanitizer ($(date +%T))"
  ctest --preset tsan -R "^($(IFS='|'; echo "${threaded[*]}"))\$" -j2 || status=1
fi
build release
echo "== tests ($(date +%T))"
ctest --preset release -j2 || status=1
[ $status = 0 ] || echo "some tests failed; see above"
exit $status
