#!/usr/bin/env bash
# asap_ray <% version %>, written by task=launch: starts the cluster, runs the command on its head, fetches what it
# found, and gives all back however it ends. The deadline ends the command, and with it the bill.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
finish() {
    ray rsync-down cluster.yaml <% (results ~ "/") | sh %> results/ || true
    ray down --yes cluster.yaml
}
trap finish EXIT
ray up --yes --no-config-cache cluster.yaml
ray exec cluster.yaml 'bash /tmp/asap_ray/job/<% head %>'
