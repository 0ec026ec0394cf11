#!/usr/bin/env bash
# Qwen3-4B.sh [MODE] [NODE_RANK] [HEAD_IP] [OPTIONS...]: see --help.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/run_model.sh"
run_model Qwen3-4B "" "$@"
