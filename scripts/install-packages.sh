#!/usr/bin/env bash
# Installs Debian packages of the names given, as root or with sudo.
set -euo pipefail
command -v apt-get >/dev/null || { echo "install: $*" >&2; exit 1; }
root=()
[ "$(id -u)" = 0 ] || root=(sudo -n)
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
