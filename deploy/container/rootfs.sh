#!/usr/bin/env bash
# Puts a binary and the libraries that it is linked with into an empty folder, which is all that an image needs:
#   rootfs.sh BINARY FOLDER
# The binary stays dynamic: it loads libraries of the machine (CUDA's, a BLAS) where they are mounted into the image.
set -euo pipefail
[ $# = 2 ] && [ -x "$1" ] || { echo "usage: rootfs.sh BINARY FOLDER" >&2; exit 2; }
binary=$1 folder=$2
mkdir -p "$folder"/{usr/bin,models,tmp,etc}
chmod 1777 "$folder/tmp"
cp "$binary" "$folder/usr/bin/halimede"
ln -sf halimede "$folder/usr/bin/tritonserver"
# Lines of ldd: "name => path (address)", the loader alone as "path (address)", the kernel's own part without a path.
ldd "$binary" | grep -o '/[^ ]*' | sort -u | while read -r library; do
    mkdir -p "$folder$(dirname "$library")"
    cp -L "$library" "$folder$library"
done
# Names of hosts are looked up by libraries that glibc loads when it needs them.
for library in libnss_files.so.2 libnss_dns.so.2 libresolv.so.2; do
    path=$(/sbin/ldconfig -p | awk -v name="$library" '$1 == name && !found { print $NF; found = 1 }')
    [ -z "$path" ] || { mkdir -p "$folder$(dirname "$path")" && cp -L "$path" "$folder$path"; }
done
printf 'hosts: files dns\n' >"$folder/etc/nsswitch.conf"
printf 'halimede:x:1000:1000::/:/\n' >"$folder/etc/passwd"
