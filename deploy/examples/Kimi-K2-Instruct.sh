#!/usr/bin/env bash
# Kimi-K2-Instruct.sh [MODE] [NODE_RANK] [HEAD_IP] [OPTIONS...]: see --help.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/run_model.sh"
run_model Kimi-K2-Instruct "" "$@"
