#!/usr/bin/env bash
# asap_ray <% version %>, written by task=launch. What job/ needs must be installed on the cluster: see constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
address=${RAY_API_SERVER_ADDRESS:-<% address | sh %>}
id=<% name | sh %>-$(date -u +%Y%m%d-%H%M%S)-$$
echo "submitting $id, $(du -sh job | cut -f1), to $address" >&2
exec ray job submit --address "$address" --submission-id "$id" --working-dir job "$@" -- bash <% run %>
