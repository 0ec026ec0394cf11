#!/usr/bin/env bash
# run.sh: installs what is missing, builds, and runs all tests that need the virtual machine.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
deploy/install-packages.sh deploy/packages.txt tests/packages.txt
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
cmake --preset release "${launcher[@]}" >/dev/null
cmake --build --preset release --target verbs_conformance_test verbs_rails_test verbs_transport_test \
  xfer-coordinator xfer-agent xfer-rank xferctl
ctest --preset release -L rdma_vm "$@"
