#!/bin/bash
# Postgres's own tests: the regression schedule, the isolation schedule and libpq_pipeline, direct
# and through the proxy: without a rule, with the whole database under one rule and a ticket in
# PGOPTIONS, and the same with the watermarks in the backend. Fails where a test passes direct and
# not through the proxy, unless DIFFERENCES.md explains it.
#
#   tests/postgres_suite/run.sh [regress|isolation|pipeline...]       all three without any
#
# The tests are fetched as a Debian source package into target/postgres-suite. Root runs everything
# of Postgres's as the user of its package.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${RINGFENCE_POSTGRES_SUITE_DIR:-$root/target/postgres-suite}"
ringfence="${RINGFENCE_BIN:-$root/target/debug/ringfence}"
version=15
bin="/usr/lib/postgresql/$version/bin"
lib="/usr/lib/postgresql/$version/lib"
# A run that hangs is ended, and what it has not run has not passed.
suite_seconds="${RINGFENCE_POSTGRES_SUITE_SECONDS:-900}"

suites=("$@")
if [ "${#suites[@]}" = 0 ]; then
    suites=(regress isolation pipeline)
fi

fetch() {
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    cd "$work"
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror
    # Where this machine's packages come from: its sources are there too. Those of the release will
    # do for a server with a later security fix: the direct run tells what passes.
    mirror="${RINGFENCE_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' \
        'Codename: bookworm' 'Component: main' | sort -u | head -n1)}"
    printf 'Types: deb-src\nURIs: %s\nSuites: bookworm\nComponents: main\nSigned-By: %s\n' \
        "$mirror" "$keyring" >apt/debian.sources
    local options=(-qq -o "Dir::Etc::sourcelist=$work/apt/debian.sources"
        -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/apt/lists"
        -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" source --download-only "postgresql-$version"
    rm -rf source && mkdir source
    tar xjf "postgresql-$version"_*.orig.tar.bz2 -C source --strip-components=1 \
        --wildcards '*/src/test/regress' '*/src/test/isolation' '*/src/test/modules/libpq_pipeline'
    touch "$work/fetched"
}

# What the tests load into the server, and the client of the pipelines.
build() {
    local include
    include="$("$bin/pg_config" --includedir-server 2>/dev/null || true)"
    [ -d "$include" ] || include="/usr/include/postgresql/$version/server"
    mkdir -p "$work/lib"
    gcc -O1 -fPIC -shared -I"$include" "$work/source/src/test/regress/regress.c" \
        -o "$work/lib/regress.so"
    # Of contrib, which Debian has installed.
    cp "$lib/refint.so" "$lib/autoinc.so" "$work/lib/"
    gcc -O1 -I"$include" -I/usr/include/postgresql \
        "$work/source/src/test/modules/libpq_pipeline/libpq_pipeline.c" \
        -o "$work/libpq_pipeline" -L"$lib" -lpgcommon -lpgport -lpq -lm
    touch "$work/built"
}

. "$here/servers.sh"

run="$(mktemp -d)"
trap 'end_children; rm -rf "$run"' EXIT
chmod 755 "$run"

# The names of what passed, from a log of pg_regress.
passed() {
    sed -nE 's/^(test |     )([A-Za-z0-9_-]+) +\.\.\. ok .*/\2/p' "$1" | LC_ALL=C sort -u
}

run_regress() {
    local port="$1"
    cp -r "$work/source/src/test/regress" "$run/regress"
    mkdir -p "$run/regress/out"
    cp -r "$work/lib" "$run/lib"
    [ "$(id -u)" != 0 ] || chown -R postgres: "$run/regress" "$run/lib"
    local schedule=("--schedule=$run/regress/parallel_schedule")
    [ -z "${RINGFENCE_POSTGRES_SUITE_TESTS:-}" ] ||
        read -ra schedule <<<"$RINGFENCE_POSTGRES_SUITE_TESTS"
    as_postgres timeout "$suite_seconds" "$lib/pgxs/src/test/regress/pg_regress" --bindir="$bin" \
        --inputdir="$run/regress" --outputdir="$run/regress/out" --dlpath="$run/lib" \
        --host=127.0.0.1 --port="$port" --user=postgres --dbname=regression \
        --max-connections=20 "${schedule[@]}" >"$2.log" 2>&1 || true
    cp "$run/regress/out/regression.diffs" "$2.diffs" 2>/dev/null || true
    passed "$2.log" >"$2"
    rm -rf "$run/regress" "$run/lib"
}

run_isolation() {
    local port="$1"
    cp -r "$work/source/src/test/isolation" "$run/isolation"
    mkdir -p "$run/isolation/out"
    [ "$(id -u)" != 0 ] || chown -R postgres: "$run/isolation"
    as_postgres timeout "$suite_seconds" "$lib/pgxs/src/test/isolation/pg_isolation_regress" \
        --bindir="$bin" --inputdir="$run/isolation" --outputdir="$run/isolation/out" \
        --host=127.0.0.1 --port="$port" --user=postgres --dbname=regression \
        --schedule="$run/isolation/isolation_schedule" >"$2.log" 2>&1 || true
    cp "$run/isolation/out/regression.diffs" "$2.diffs" 2>/dev/null || true
    passed "$2.log" >"$2"
    rm -rf "$run/isolation"
}

# Each of its tests twice: that it succeeds, and that its trace is the expected one.
run_pipeline() {
    local port="$1" name place traces
    traces="$work/source/src/test/modules/libpq_pipeline/traces"
    "$bin/createdb" -h 127.0.0.1 -p "$port" -U postgres regression
    place="host=127.0.0.1 port=$port user=postgres dbname=regression"
    : >"$2.log"
    for name in $("$work/libpq_pipeline" tests); do
        if timeout 60 "$work/libpq_pipeline" -t "$run/trace" "$name" "$place" >>"$2.log" 2>&1; then
            echo "$name"
            if [ -e "$traces/$name.trace" ]; then
                if diff -u "$traces/$name.trace" "$run/trace" >>"$2.log"; then
                    echo "$name, its trace"
                fi
            fi
        fi
    done | LC_ALL=C sort -u >"$2"
}

[ -e "$work/fetched" ] || fetch
[ -e "$work/built" ] || build

# run_one MODE SUITE: what passed goes to $work/results/MODE/SUITE.
run_one() {
    local mode="$1" suite="$2" upstream port
    rm -rf "${run:?}"/*
    [ "$(id -u)" != 0 ] || chown postgres: "$run"
    upstream="$(free_port)"
    start_server "$upstream"
    port="$upstream"
    unset PGOPTIONS
    if [ "$mode" != direct ]; then
        port="$(free_port)"
        start_proxy "$mode" "$port" "$upstream" regression
        [ "$mode" = open ] || export PGOPTIONS="-c ringfence.token=1"
    fi
    local started=$SECONDS
    "run_$suite" "$port" "$work/results/$mode/$suite"
    cp "$run/proxy.log" "$work/results/$mode/$suite.proxy.log" 2>/dev/null || true
    end_children
    echo "$mode $suite: $(wc -l <"$work/results/$mode/$suite") passed in $((SECONDS - started)) s"
}

# Results of an earlier run are taken for the modes that are left out.
modes=(${RINGFENCE_POSTGRES_SUITE_MODES:-direct open fenced backend})
for mode in "${modes[@]}"; do
    mkdir -p "$work/results/$mode"
    for suite in "${suites[@]}"; do
        rm -f "$work/results/$mode/$suite"*
        run_one "$mode" "$suite"
    done
done

tell_differences "${suites[@]}"
