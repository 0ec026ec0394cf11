# shellcheck shell=bash
# Sourced by the scripts beside it, which name a model; everything else they do is here.

usage() {  # PREFIX
  cat >&2 <<END
usage: $(basename "$0") $1[MODE] [NODE_RANK] [HEAD_IP] [OPTIONS...]

  MODE       p2p (default) or broadcast
  NODE_RANK  this machine's number among the nodes; 0 is the head. Without it, all nodes are emulated here
  HEAD_IP    address of the head, the same on every machine
  OPTIONS    from the first word with a dash: options of \`xferctl run\`, e.g. --tiny, --steps 5, --insecure

Bucket size and time limit are those of the model's preset, unless options or the environment say otherwise.
XFER_BIN_DIR names the programs' directory; by default build/release/bin of this checkout, else PATH is searched.
END
}

wrong_use() {  # MESSAGE PREFIX
  echo "$(basename "$0"): $1" >&2
  usage "$2"
  exit 2
}

find_xferctl() {
  local built
  built=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../../build/release/bin
  if [ -n "${XFER_BIN_DIR:-}" ]; then
    echo "$XFER_BIN_DIR/xferctl"
  elif [ -x "$built/xferctl" ]; then
    realpath "$built/xferctl"
  elif command -v xferctl; then
    :
  else
    echo "$(basename "$0"): no xferctl in $built or PATH: build it (deploy/quickstart.sh does) or set XFER_BIN_DIR" >&2
    return 1
  fi
}

# run_model MODEL PREFIX [MODE] [NODE_RANK] [HEAD_IP] [OPTIONS...]; PREFIX is what stands before MODE in the usage.
run_model() {
  local model=$1 prefix=$2 words=() arguments=(--mode p2p) xferctl
  shift 2
  while [ $# -gt 0 ] && [[ $1 != -* ]]; do
    words+=("$1")
    shift
  done
  if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
    usage "$prefix" 2>&1
    exit 0
  fi
  [ ${#words[@]} -le 3 ] || wrong_use "\"${words[3]}\" is one word too many" "$prefix"
  if [ ${#words[@]} -ge 1 ]; then
    [[ ${words[0]} =~ ^(p2p|broadcast)$ ]] || wrong_use "MODE is \"${words[0]}\"; it must be p2p or broadcast" "$prefix"
    arguments=(--mode "${words[0]}")
  fi
  if [ ${#words[@]} -ge 2 ]; then
    [[ ${words[1]} =~ ^[0-9]+$ ]] || wrong_use "NODE_RANK is \"${words[1]}\"; it must be a number from 0" "$prefix"
    arguments+=(--node-rank "${words[1]}")
  fi
  if [ ${#words[@]} -ge 3 ]; then
    arguments+=(--head-ip "${words[2]}")
  fi
  xferctl=$(find_xferctl) || exit 1
  exec "$xferctl" run "$model" "${arguments[@]}" "$@"
}
