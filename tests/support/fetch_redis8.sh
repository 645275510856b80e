#!/bin/bash
# Puts Redis 8 and Valkey 8 (redis-server and valkey-server) into the folder given: Debian 12 itself
# has only Redis 7.0.
#
# The packages are those of the Debian release after it, from the mirror that this machine uses,
# checked against Debian's keyring; they are unpacked and not installed. Their libraries, libc and
# its loader among them, come along, for those of this release are too old.
set -euo pipefail
# Where a pipe's failure counts, its last command must read all: `head` would end the one before it.
folder=$1
suite=trixie
packages=(redis-tools valkey-tools libc6 libgcc-s1 libstdc++6 libatomic1 libjemalloc2 liblzf1
    libssl3t64 libsystemd0 libcap2 zlib1g libzstd1)

mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Created-By: Packages' |
    grep -v security | sed -n 1p)"
[ -n "$mirror" ] || { echo "no Debian mirror among apt's sources: run apt-get update"; exit 1; }
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" \
    >"$work/sources.list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
"${apt[@]}" update
(cd "$work" && "${apt[@]}" download "${packages[@]}")
for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$work/x"
done

mkdir -p "$folder/lib" "$folder/bin"
# Links become files: a library is asked for by one of its names, and the folder may be moved.
find "$work/x" -path '*-linux-gnu*/*.so.[0-9]*' -not -path '*/gconv/*' -not -name '*.py' |
    while read -r library; do cp -L "$library" "$folder/lib"; done
cp -L "$(find "$work/x" -name 'ld-linux*.so.*' | sed -n 1p)" "$folder/lib/loader"
for server in redis valkey; do
    # One program under several names: it is the server unless it is called as another.
    cp "$work/x/usr/bin/$server-check-rdb" "$folder/bin/$server-server"
    cat >"$folder/$server-server" <<SCRIPT
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
exec "\$here/lib/loader" --library-path "\$here/lib" "\$here/bin/$server-server" "\$@"
SCRIPT
    chmod +x "$folder/$server-server"
    "$folder/$server-server" --version
done
