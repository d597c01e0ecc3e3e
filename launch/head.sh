#!/usr/bin/env bash
# asap_ray <% version %>, written by task=launch: what the head runs.
set -euo pipefail
RAY_ADDRESS="$(hostname -I | awk '{print $1}'):<% port %>"
export RAY_ADDRESS <% results_variable %>=<% results | sh %>
exec timeout <% seconds %> bash "$(dirname "${BASH_SOURCE[0]}")/<% run %>"
