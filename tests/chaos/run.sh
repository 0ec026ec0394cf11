#!/usr/bin/env bash
# run.sh [--seed N] [--minutes M] [...]: builds, and runs the chaos suite; see chaos.py --help. Needs root.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
deploy/install-packages.sh deploy/packages.txt tests/packages.txt
deploy/build.sh release ON xfer-coordinator xfer-agent xfer-rank xferctl
XFER_BIN_DIR=$PWD/build/release/bin exec python3 -B tests/chaos/chaos.py "$@"
