#!/bin/bash
# Postgres's own tests: the regression schedule, the isolation schedule and libpq_pipeline, direct
# and through the proxy: without a rule (open), with the whole database under one rule and lockd's
# ticket in PGOPTIONS (fenced), and under a bare token with the watermarks in the backend (backend).
# Fails where a test passes direct and not through the proxy, unless DIFFERENCES.md explains it.
#
#   tests/postgres_suite/run.sh [regress|isolation|pipeline...]       all three without any
#
# The tests are fetched as a Debian source package into target/postgres-suite, and server, psql and
# libpq of the very same version beside them, since tests change with what a security update fixes.
# Root runs everything of Postgres's as the user of its package.
#
# RINGFENCE_POSTGRES_SUITE_TREE names a source tree of Postgres instead, of any version, which was
# configured with a --prefix, built and installed: make install, the same with -C contrib/spi, and
# src/test/regress, src/test/isolation and src/test/modules/libpq_pipeline, where there is one,
# built. DIFFERENCES.md is about Debian's version, and names others.
set -euo pipefail

. "$(dirname "$0")/servers.sh"

work="$suite_folder"
tree="${RINGFENCE_POSTGRES_SUITE_TREE:-}"
[ -z "$tree" ] || work="$suite_folder/$(basename "$tree")"
# A run that hangs is ended, and what it has not run has not passed.
suite_seconds="${RINGFENCE_POSTGRES_SUITE_SECONDS:-900}"

suites=("$@")
if [ "${#suites[@]}" = 0 ]; then
    suites=(regress isolation pipeline)
fi

# --- What is run

# A shell of its own, since it works in the folder.
fetch() (
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    cd "$work"
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror
    # Where this machine's packages come from: their sources are there too.
    mirror="${RINGFENCE_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' \
        'Codename: bookworm' 'Component: main' | sort -u | sed -n 1p)}"
    printf 'Types: deb deb-src\nURIs: %s\nSuites: bookworm\nComponents: main\nSigned-By: %s\n' \
        "$mirror" "$keyring" >apt/debian.sources
    local options=(-qq -o "Dir::Etc::sourcelist=$work/apt/debian.sources"
        -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/apt/lists"
        -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" source --download-only "postgresql-$version"
    rm -rf source server && mkdir source server
    tar xjf "postgresql-$version"_*.orig.tar.bz2 -C source --strip-components=1 \
        --wildcards '*/src/test/regress' '*/src/test/isolation' '*/src/test/modules/libpq_pipeline'
    # Not installed: they need not be the machine's own.
    local release package packages=("postgresql-$version" "postgresql-client-$version"
        "postgresql-server-dev-$version" libpq5 libpq-dev)
    release="$(ls "postgresql-$version"_*.dsc)"
    release="${release#*_}"
    rm -f ./*.deb
    apt-get "${options[@]}" download "${packages[@]/%/=${release%.dsc}}"
    for package in *.deb; do
        dpkg-deb --extract "$package" server
    done
    touch "$work/fetched"
)

# What the tests load into the server, and the client of the pipelines.
build() {
    local usr="$work/server/usr" libpq
    libpq="$(dirname "$usr"/lib/*/libpq.so)"
    mkdir -p "$work/lib"
    gcc -O1 -fPIC -shared -I"$usr/include/postgresql/$version/server" \
        "$work/source/src/test/regress/regress.c" -o "$work/lib/regress.so"
    # Of contrib.
    cp "$usr/lib/postgresql/$version/lib/"{refint,autoinc}.so "$work/lib/"
    gcc -O1 -I"$usr/include/postgresql/$version/server" -I"$usr/include/postgresql" \
        "$work/source/src/test/modules/libpq_pipeline/libpq_pipeline.c" \
        -o "$work/libpq_pipeline" -L"$usr/lib/postgresql/$version/lib" -lpgcommon -lpgport \
        "$libpq/libpq.so" -lm
    touch "$work/built"
}

# Of Debian's version: sets bin (programs), testers (its own ones), libraries (of clients).
use_debian() {
    [ -e "$work/fetched" ] || fetch
    [ -e "$work/built" ] || build
    # Where everybody may read it: the tree of the sources may be somebody's own.
    cp -r "$work/server/usr" "$base/usr"
    chmod -R u=rwX,go=rX "$base"
    bin="$base/usr/lib/postgresql/$version/bin"
    testers="$base/usr/lib/postgresql/$version/lib/pgxs/src/test"
    libraries="$(dirname "$base"/usr/lib/*/libpq.so)"
}

# The same of a tree that was built.
use_tree() {
    local prefix
    prefix="$(sed -nE 's/^prefix := (.*)/\1/p' "$tree/src/Makefile.global")"
    rm -rf "$work/source"
    mkdir -p "$work/source/src/test/modules" "$work/lib"
    cp -r "$tree/src/test/regress" "$tree/src/test/isolation" "$work/source/src/test/"
    cp "$tree/src/test/regress/regress.so" "$tree"/contrib/spi/{refint,autoinc}.so "$work/lib/"
    local pipeline="$tree/src/test/modules/libpq_pipeline"
    # From version 14 on.
    if [ -e "$pipeline" ]; then
        cp -r "$pipeline" "$work/source/src/test/modules/"
        cp "$pipeline/libpq_pipeline" "$work/"
    fi
    bin="$prefix/bin" libraries="$prefix/lib"
    # Not all versions install them. The user of the server must be able to enter.
    testers="$tree/src/test"
    major="$("$bin/pg_config" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/'): "
}

if [ -n "$tree" ]; then use_tree; else use_debian; fi
export LD_LIBRARY_PATH="$libraries"

# --- The three suites: run_SUITE PORT RESULT MODE

# The names of what passed, and of what failed, from a log of pg_regress: its form changed with 16.
passed() {
    sed -nE -e 's/^(test |     )([A-Za-z0-9_.-]+) +\.\.\. ok .*/\2/p' \
        -e 's/^ok [0-9]+ +[-+] ([A-Za-z0-9_.-]+) .*/\1/p' "$1" | LC_ALL=C sort -u
}
failed() {
    sed -nE -e 's/^(test |     )([A-Za-z0-9_.-]+) +\.\.\. FAILED .*/\2/p' \
        -e 's/^not ok [0-9]+ +[-+] ([A-Za-z0-9_.-]+) .*/\1/p' "$1" | LC_ALL=C sort -u
}

run_regress() {
    local port="$1"
    cp -r "$work/source/src/test/regress" "$run/regress"
    # Before version 15 some of the tests are made there.
    mkdir -p "$run"/regress/out/{sql,expected,testtablespace}
    cp -r "$work/lib" "$run/lib"
    [ "$(id -u)" != 0 ] || chown -R postgres: "$run/regress" "$run/lib"
    local schedule=("--schedule=$run/regress/parallel_schedule")
    [ -z "${RINGFENCE_POSTGRES_SUITE_TESTS:-}" ] ||
        read -ra schedule <<<"$RINGFENCE_POSTGRES_SUITE_TESTS"
    as_postgres timeout "$suite_seconds" "$testers/regress/pg_regress" --bindir="$bin" \
        --inputdir="$run/regress" --outputdir="$run/regress/out" --dlpath="$run/lib" \
        --host=127.0.0.1 --port="$port" --user=postgres --dbname=regression \
        --max-connections=20 "${schedule[@]}" >"$2.log" 2>&1 || true
    cp "$run/regress/out/regression.diffs" "$2.diffs" 2>/dev/null || true
    passed "$2.log" >"$2"
    rm -rf "$run/regress" "$run/lib"
}

run_isolation() {
    local mode="$3" again late
    isolation "$1" "$2.log" "--schedule=$run/isolation/isolation_schedule"
    cp "$run/isolation/out/regression.diffs" "$2.diffs" 2>/dev/null || true
    # The tester takes 10 ms of silence, and a session that waits, for all that it will hear: a
    # notice that is on its way through another process then comes late in the protocol.
    for again in 1 2; do
        mapfile -t late < <(LC_ALL=C comm -23 <(failed "$2.log") <(passed "$2.log"))
        if [ "$mode" = direct ] || [ "${#late[@]}" = 0 ]; then break; fi
        echo "$mode isolation, again: ${late[*]}"
        isolation "$1" "$2.again.log" "${late[@]}"
        cat "$2.again.log" >>"$2.log"
    done
    passed "$2.log" >"$2"
}

# isolation PORT LOG TEST...
isolation() {
    local port="$1" log="$2"
    shift 2
    rm -rf "$run/isolation"
    cp -r "$work/source/src/test/isolation" "$run/isolation"
    mkdir -p "$run"/isolation/out/{specs,expected}
    [ "$(id -u)" != 0 ] || chown -R postgres: "$run/isolation"
    as_postgres timeout "$suite_seconds" "$testers/isolation/pg_isolation_regress" \
        --bindir="$bin" --inputdir="$run/isolation" --outputdir="$run/isolation/out" \
        --host=127.0.0.1 --port="$port" --user=postgres --dbname=isolation_regression \
        "$@" >"$log" 2>&1 || true
}

# Each of its tests twice: that it succeeds, and that its trace is the expected one.
run_pipeline() {
    local port="$1" name place traces
    traces="$work/source/src/test/modules/libpq_pipeline/traces"
    "$bin/createdb" -h 127.0.0.1 -p "$port" -U postgres regression
    place="host=127.0.0.1 port=$port user=postgres dbname=regression"
    : >"$2.log"
    for name in $("$work/libpq_pipeline" tests); do
        # One writes until sockets are full: hundreds of thousands of rows, on a busy machine.
        if timeout 300 "$work/libpq_pipeline" -t "$run/trace" "$name" "$place" >>"$2.log" 2>&1; then
            echo "$name"
            if [ -e "$traces/$name.trace" ]; then
                if diff -u "$traces/$name.trace" "$run/trace" >>"$2.log"; then
                    echo "$name, its trace"
                fi
            fi
        fi
    done | LC_ALL=C sort -u >"$2"
}

# --- One suite in one mode

run_one() {
    local mode="$1" suite="$2" result="$3" database=regression started
    # A test of the isolation schedule names its own.
    [ "$suite" != isolation ] || database=isolation_regression
    start_server
    start_fence "$mode" "$database"
    [ -z "$ticket" ] || export PGOPTIONS="-c ringfence.token=$ticket"
    started=$SECONDS
    "run_$suite" "$port" "$result" "$mode"
    end_run "$mode" "$database" "$result" $((SECONDS - started))
}

compare "${suites[@]}"
