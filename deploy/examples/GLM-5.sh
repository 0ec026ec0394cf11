#!/usr/bin/env bash
# GLM-5.sh VARIANT [MODE] [NODE_RANK] [HEAD_IP] [OPTIONS...]: VARIANT is GLM-5_4layer, GLM-5_20layer or GLM-5; see --help.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/run_model.sh"
prefix="GLM-5_4layer|GLM-5_20layer|GLM-5 "
case ${1:-} in
  GLM-5_4layer | GLM-5_20layer | GLM-5) ;;
  -h | --help) usage "$prefix" 2>&1; exit 0 ;;
  *) wrong_use "VARIANT is \"${1:-}\"; it must be GLM-5_4layer, GLM-5_20layer or GLM-5" "$prefix" ;;
esac
variant=$1
shift
run_model "$variant" "$prefix" "$@"
