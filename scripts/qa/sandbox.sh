#!/usr/bin/env bash
# Run a command where NVIDIA's test scripts find what they expect:
#   /opt/tritonserver/bin/tritonserver   the server under test
#   /opt/tritonserver/qa                 the suites, which are in QA_FOLDER
#   /data/inferenceserver/VERSION        the generated models
#   ports 8000 to 8003 of a network of its own, and shared memory of its own
#   /etc/nginx                           a copy, where there is one
# in namespaces of their own, so nothing outside changes and runs can overlap.
# Linux only; needs root or user namespaces.
#
#   sandbox.sh SERVER DATA VERSION COMMAND...
set -euo pipefail

if [[ "${1:-}" != --inside ]]; then
  exec unshare --map-root-user --mount --net --pid --fork --kill-child "$0" --inside "$@"
fi
shift
server=$(realpath "$1") data=$(realpath "$2") version=$3
shift 3

ip link set lo up
# Seen in this namespace alone, and gone with it.
root=/mnt
mount -t tmpfs none "$root"
for entry in /*; do
  name=${entry#/}
  case $name in
    opt | data | proc | mnt) continue ;;
  esac
  if [[ -L $entry ]]; then
    cp -P "$entry" "$root/$name"
  elif [[ -d $entry ]]; then
    mkdir "$root/$name"
    mount --rbind "$entry" "$root/$name"
  fi
done
# L0_https configures and starts the machine's nginx, whose workers have no other user here.
if [[ -d /etc/nginx ]]; then
  for folder in /run /var/log/nginx /etc/nginx; do
    mount -t tmpfs none "$root$folder"
  done
  cp -r /etc/nginx/. "$root/etc/nginx"
  sed -i 's/^user .*/user root;/' "$root/etc/nginx/nginx.conf"
fi
# Scripts count what lies there, and fill it.
mount -t tmpfs -o "size=${SHM_SIZE:-50%}" none "$root/dev/shm"
mkdir -p "$root/proc" "$root/mnt" "$root/opt/tritonserver/bin" "$root/opt/tritonserver/backends" "$root/data/inferenceserver/$version"
mount -t proc none "$root/proc"
# A script rather than a link: the server looks at the name that it was started under.
cat >"$root/opt/tritonserver/bin/tritonserver" <<END
#!/bin/bash
exec -a tritonserver "$server" "\$@"
END
chmod +x "$root/opt/tritonserver/bin/tritonserver"
ln -s "$QA_FOLDER" "$root/opt/tritonserver/qa"
mount --bind "$data" "$root/data/inferenceserver/$version"
directory=$PWD
exec chroot "$root" /bin/bash -c 'cd "$0" && exec "$@"' "$directory" "$@"
