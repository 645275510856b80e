#!/bin/bash
# Unpacks packages of the Debian release after this machine's into a folder, where they are not
# installed: unpack_debian.sh FOLDER PACKAGE...
#
# They come from the mirror that this machine uses, and are checked against Debian's keyring.
set -euo pipefail
# Where a pipe's failure counts, its last command must read all: `head` would end the one before it.
folder=$1
shift
suite=trixie

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
(cd "$work" && "${apt[@]}" download "$@")
for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$folder"
done
