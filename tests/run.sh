#!/usr/bin/env bash
# run.sh [--quick]: installs what is missing, builds, and runs every test; ends with ctest's summary.
#   --quick   the release build's tests only, without the sanitizer builds
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
quick=
[ "${1:-}" = --quick ] && quick=1

deploy/install-packages.sh deploy/packages.txt tests/packages.txt
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

build() {  # PRESET [TARGET...]
  local preset=$1
  shift
  echo "== building $preset"
  cmake --preset "$preset" "${launcher[@]}" >"build/$preset.configure.log" 2>&1 || { cat "build/$preset.configure.log"; exit 1; }
  cmake --build --preset "$preset" ${1:+--target "$@"} >"build/$preset.build.log" 2>&1 ||
    { tail -n 60 "build/$preset.build.log"; exit 1; }
}
mkdir -p build

status=0
if [ -z "$quick" ]; then
  for preset in asan tsan; do
    build "$preset"
    echo "== tests under $preset"
    ctest --preset "$preset" || status=1
  done
fi
build release
echo "== tests"
ctest --preset release || status=1
[ $status = 0 ] || echo "some tests failed; see above"
exit $status
