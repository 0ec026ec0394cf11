#!/usr/bin/env bash
# GLM-4.7-Flash.sh [MODE] [NODE_RANK] [HEAD_IP] [OPTIONS...]: see --help.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/run_model.sh"
run_model GLM-4.7-Flash "" "$@"
