#!/usr/bin/env bash
# quickstart.sh [--full] [--layers N] [run options...]: installs what is missing, builds, and syncs the weights of
# Qwen3-4B from emulated Megatron ranks to emulated sglang engines on this machine, checked byte for byte.
#   --full      all 36 layers (about 33 GB of memory and 17 GB of disk); the default is the first 4 (8 GB, 5 GB)
#   --layers N  the first N layers
# Other options go to `xferctl run`; see `build/release/bin/xferctl run --help`.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

layers=(--layers 4)
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --full) layers=() ;;
    --layers) layers=(--layers "${2:?--layers needs a number}"); shift ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) options+=("$1") ;;
  esac
  shift
done

deploy/install-packages.sh deploy/packages.txt
echo "building (build/release) ..."
deploy/build.sh release OFF

# Trainers and engines stand on two emulated nodes, an agent each, so that the weights really cross a
# connection between two agents.
exec build/release/bin/xferctl run Qwen3-4B "${layers[@]}" --nodes 2 --mode p2p --steps 3 "${options[@]}"
