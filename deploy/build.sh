#!/usr/bin/env bash
# build.sh PRESET TESTS [TARGET...]: configures and builds build/PRESET (see CMakePresets.json), quietly: the logs are
# build/PRESET.configure.log and build/PRESET.build.log, and their ends are shown on failure.
#   TESTS  ON: with tests and benchmarks, which need the packages of tests/packages.txt; OFF: the programs alone
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
preset=$1
tests=$2
shift 2

launcher=()
if command -v ccache >/dev/null; then
  # Paths relative to the checkout, so that another checkout of the same sources finds what this one compiled.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
mkdir -p build
fail() {
  echo "build.sh: $1 failed; the end of $2:" >&2
  tail -n 60 "$2" >&2
  exit 1
}
cmake --preset "$preset" -DXFER_TESTS="$tests" -DXFER_BENCH="$tests" "${launcher[@]}" >"build/$preset.configure.log" 2>&1 ||
  fail "configuring $preset" "build/$preset.configure.log"
cmake --build --preset "$preset" ${1:+--target "$@"} >"build/$preset.build.log" 2>&1 ||
  fail "building $preset" "build/$preset.build.log"
