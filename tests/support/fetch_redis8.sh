#!/bin/bash
# Puts Redis 8 and Valkey 8 (redis-server and valkey-server) into the folder given: Debian 12 itself
# has only Redis 7.0.
#
# They are those of the next Debian release. Their libraries, libc and its loader among them, come
# along, for those of this release are too old.
set -euo pipefail
folder=$1

unpacked="$(mktemp -d)"
trap 'rm -rf "$unpacked"' EXIT
"$(dirname "$0")/unpack_debian.sh" "$unpacked" redis-tools valkey-tools libc6 libgcc-s1 libstdc++6 \
    libatomic1 libjemalloc2 liblzf1 libssl3t64 libsystemd0 libcap2 zlib1g libzstd1

mkdir -p "$folder/lib" "$folder/bin"
# Links become files: a library is asked for by one of its names, and the folder may be moved.
find "$unpacked" -path '*-linux-gnu*/*.so.[0-9]*' -not -path '*/gconv/*' -not -name '*.py' |
    while read -r library; do cp -L "$library" "$folder/lib"; done
cp -L "$(find "$unpacked" -name 'ld-linux*.so.*' | sed -n 1p)" "$folder/lib/loader"
for server in redis valkey; do
    # One program under several names: it is the server unless it is called as another.
    cp "$unpacked/usr/bin/$server-check-rdb" "$folder/bin/$server-server"
    cat >"$folder/$server-server" <<SCRIPT
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
exec "\$here/lib/loader" --library-path "\$here/lib" "\$here/bin/$server-server" "\$@"
SCRIPT
    chmod +x "$folder/$server-server"
    "$folder/$server-server" --version
done
