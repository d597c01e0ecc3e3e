#!/usr/bin/env bash
# asap_ray <% version %>, written by task=launch: the same command again takes the run up where it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
results=${<% results_variable %>:-<% results | sh %>}
mkdir -p "$results"
exec python -m asap_ray \
<% words %> \
    run_dir="$results"
