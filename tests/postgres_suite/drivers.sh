#!/bin/bash
# The own tests of drivers, direct and through the proxy: without a rule (open), with the whole
# database under one rule and lockd's ticket in the driver's options (fenced), and under a bare
# token with the watermarks in the backend (backend). Fails where a test passes direct and not
# through the proxy, unless DIFFERENCES.md explains it.
#
#   tests/postgres_suite/drivers.sh [DRIVER...]
#
# asyncpg, psycopg2, pg8000 and tokio-postgres come with their tests in their packages, and are run
# without an argument. The packages of psycopg and node-postgres have none: they are run where
# RINGFENCE_PSYCOPG_CHECKOUT and RINGFENCE_NODE_POSTGRES_CHECKOUT name checkouts of a release, whose
# tests are run with the package of that release. psycopg's take long: RINGFENCE_PSYCOPG_TESTS names
# those of one part (files and folders below the checkout), so that parts can be run beside each
# other, each with a RINGFENCE_POSTGRES_SUITE_DIR of its own.
#
# Many of the tests are about times: what passes direct and not through the proxy is tried again.
set -euo pipefail

. "$(dirname "$0")/servers.sh"

work="$suite_folder/drivers"
bin="/usr/lib/postgresql/$version/bin"
# A run that hangs is ended, and what it has not run has not passed.
suite_seconds="${RINGFENCE_POSTGRES_SUITE_SECONDS:-1200}"
test_seconds=60
tries=3

# The tests are a release's, and DIFFERENCES.md names them.
asyncpg=0.32.0
psycopg2=2.9.13
pg8000=1.31.6
tokio_postgres=0.7.18
psycopg="${RINGFENCE_PSYCOPG_CHECKOUT:-}"
read -ra psycopg_tests <<<"${RINGFENCE_PSYCOPG_TESTS:-tests}"
node_postgres="${RINGFENCE_NODE_POSTGRES_CHECKOUT:-}"

drivers=("$@")
if [ "${#drivers[@]}" = 0 ]; then
    drivers=(asyncpg psycopg2 pg8000 tokio-postgres)
    [ -z "$psycopg" ] || drivers+=(psycopg)
    [ -z "$node_postgres" ] || drivers+=(node-postgres)
fi

# --- What is run

mkdir -p "$work"

# fetch_python NAME VERSION PACKAGE...: the tests of a release, and what they need, in a
# virtual environment of their own.
fetch_python() {
    local name="$1" version="$2"
    shift 2
    rm -rf "${work:?}/$name" && mkdir -p "$work/$name/source"
    cd "$work/$name"
    pip download --quiet --no-deps --no-binary :all: --dest sdist "$name==$version"
    tar xzf sdist/*.tar.gz -C source --strip-components=1
    python_needs "$name" "$@"
}

python_needs() {
    local name="$1"
    shift
    python3 -m venv "$work/$name/venv"
    "$work/$name/venv/bin/pip" install --quiet --disable-pip-version-check pytest pytest-timeout \
        "$@"
}

fetch_asyncpg() {
    fetch_python asyncpg "$asyncpg" "asyncpg==$asyncpg" distro
    # It would be found before the built one.
    rm -rf "$work/asyncpg/source/asyncpg"
}

fetch_psycopg2() {
    fetch_python psycopg2 "$psycopg2" "psycopg2-binary==$psycopg2"
}

fetch_pg8000() {
    fetch_python pg8000 "$pg8000" "pg8000==$pg8000" pytz pytest-mock pytest-benchmark
}

fetch_psycopg() {
    local version
    version="$(sed -nE 's/^version = "(.*)"/\1/p' "$psycopg/psycopg/pyproject.toml" | sed -n 1p)"
    mkdir -p "$work/psycopg/source"
    cp -r "$psycopg/tests" "$psycopg/pyproject.toml" "$work/psycopg/source/"
    python_needs psycopg "psycopg[binary,pool]==$version" anyio pproxy
}

fetch_tokio-postgres() {
    local package="$work/tokio-postgres/package" home="${CARGO_HOME:-$HOME/.cargo}"
    rm -rf "$work/tokio-postgres" && mkdir -p "$package/src" "$work/tokio-postgres/source"
    cd "$package"
    # An empty package that needs it: cargo knows where packages are to be had.
    touch src/lib.rs
    printf '[package]\nname = "fetches"\nedition = "2021"\n[dependencies]\n%s\n[workspace]\n' \
        "tokio-postgres = \"=$tokio_postgres\"" >Cargo.toml
    cargo fetch --quiet
    cp -r "$home"/registry/src/*/"tokio-postgres-$tokio_postgres"/. "$work/tokio-postgres/source"
    printf '[workspace]\n' >>"$work/tokio-postgres/source/Cargo.toml"
}

fetch_node-postgres() {
    local version modules="$work/node-postgres/node_modules"
    version="$(node -p 'require(process.argv[1]).version' \
        "$node_postgres/packages/pg/package.json")"
    npm install --silent --no-audit --no-fund --prefix "$work/node-postgres" "pg@$version" \
        async@2.6.4 bluebird@3.7.2 co@4.6.0 pg-copy-streams@0.3.0
    cp -r "$node_postgres/packages/pg/test" "$modules/pg/"
}

for driver in "${drivers[@]}"; do
    [ -e "$work/$driver.fetched" ] && continue
    # A shell of its own, since it works in the driver's folder.
    ("fetch_$driver")
    touch "$work/$driver.fetched"
done

# --- The drivers: run_DRIVER PORT RESULT TICKET runs the tests that "only" names, or all where it
# names none. There is no ticket where TICKET is empty.

only=()

run_python() {
    local name="$1" port="$2" result="$3" ticket="$4" tests=("${only[@]}")
    shift 4
    : >"$result.all"
    # One that was ended early would be taken for one that crashed.
    rm -rf "$run/cache"
    (
        cd "$work/$name/source"
        [ "${#tests[@]}" != 0 ] || tests=(test*)
        # Those of libpq take the ticket from PGOPTIONS; the others are told by the plugin.
        export PATH="$work/$name/venv/bin:$PATH"
        export PGHOST=127.0.0.1 PGPORT="$port" PGUSER=postgres PGDATABASE=postgres
        [ -z "$ticket" ] || export PGOPTIONS="-c ringfence.token=$ticket"
        RINGFENCE_TICKET="$ticket" RINGFENCE_PASSED="$result.all" PYTHONPATH="$here" \
            timeout "$suite_seconds" "$work/$name/venv/bin/python" -m pytest -p drivers_plugin \
            -o cache_dir="$run/cache" -q --tb=short --timeout="$test_seconds" "$@" "${tests[@]}" \
            >"$result.log" 2>&1
    ) || true
    LC_ALL=C sort -u "$result.all" >"$result"
    rm "$result.all"
}

run_asyncpg() {
    run_python asyncpg "$1" "$2" "$3"
}

run_psycopg2() {
    PSYCOPG2_TESTDB=postgres run_python psycopg2 "$1" "$2" "$3"
}

# Without the examples of its README, which connect to whatever server the machine has. What it
# measures is run once.
run_pg8000() {
    PGPASSWORD=pw run_python pg8000 "$1" "$2" "$3" --deselect test/test_readme.py \
        --benchmark-disable
}

# Without those that look for leaks of memory, those about types, those of another server, and those
# of its pool that count milliseconds.
run_psycopg() {
    local wanted=("${only[@]}") only
    only=("${wanted[@]}")
    [ "${#only[@]}" != 0 ] || only=("${psycopg_tests[@]}")
    run_python psycopg "$1" "$2" "$3" -k "not leak and not (pool and timing)" \
        --ignore=tests/test_typing.py --ignore=tests/crdb \
        --test-dsn="host=127.0.0.1 port=$1 user=postgres"
}

# Its tests name port and user: what is run is a copy that names ours.
run_tokio-postgres() {
    local copy="$work/tokio-postgres/copy" files
    rm -rf "$copy" && cp -r "$work/tokio-postgres/source" "$copy"
    # One is about the words themselves.
    mapfile -t files < <(find "$copy/tests" -name '*.rs' ! -name parse.rs)
    sed -i "s/5433/$1/g" "${files[@]}"
    [ -z "$3" ] ||
        sed -i "s/\"\(.*\)user=/\"\1options='-c ringfence.token=$3' user=/" "${files[@]}"
    (
        cd "$copy"
        CARGO_TARGET_DIR="$work/tokio-postgres/target" timeout "$suite_seconds" cargo test \
            --no-fail-fast --all-features --test test -- --exact "${only[@]}" >"$2.log" 2>&1
    ) || true
    sed -nE 's/^test (.*) \.\.\. ok$/\1/p' "$2.log" | LC_ALL=C sort -u >"$2"
}

# Each file is a program, and each of its tests prints a tick: a file that failed at its end still
# has tests that passed.
run_node-postgres() {
    local modules="$work/node-postgres/node_modules" file
    : >"$2.log"
    (
        cd "$modules/pg/test"
        export PGHOST=127.0.0.1 PGPORT="$1" PGUSER=postgres PGDATABASE=postgres
        [ -z "$3" ] || export PGOPTIONS="-c ringfence.token=$3"
        find integration -name '*-tests.js' | LC_ALL=C sort | while IFS= read -r file; do
            [ "${#only[@]}" = 0 ] || [[ " ${only[*]}" = *" $file"* ]] || continue
            if timeout "$test_seconds" node "$file" >"$2.file" 2>>"$2.log"; then
                echo "$file"
            fi
            sed -nE "s|^  (.*) ✔\$|$file: \1|p" "$2.file"
            cat "$2.file" >>"$2.log"
        done
    ) | LC_ALL=C sort -u >"$2"
    rm "$2.file"
}

# --- One driver in one mode

run_one() {
    local mode="$1" driver="$2" result="$3" started
    only=()
    # The users of tests that are about authentication have passwords.
    printf 'host all %s 127.0.0.1/32 %s\n' pass_user password md5_user md5 \
        scram_user scram-sha-256 >"$run/hba.conf"
    printf '%s all 127.0.0.1/32 trust\n' 'host all' 'host replication' >>"$run/hba.conf"
    printf 'local all all trust\nhost all all ::1/128 trust\n' >>"$run/hba.conf"
    start_server -c "hba_file=$run/hba.conf" -c wal_level=logical
    prepare "$upstream" "$driver" >"$run/prepare.log"
    start_fence "$mode" postgres
    started=$SECONDS
    "run_$driver" "$port" "$result" "$ticket"
    [ "$mode" = direct ] || try_again "$driver" "$port" "$result" "$ticket"
    end_run "$mode" postgres "$result" $((SECONDS - started))
}

# What the tests of drivers expect of a server.
prepare() {
    local sql="CREATE ROLE pass_user LOGIN PASSWORD 'password';
        SET password_encryption = 'md5';
        CREATE ROLE md5_user LOGIN PASSWORD 'password';
        SET password_encryption = 'scram-sha-256';
        CREATE ROLE scram_user LOGIN PASSWORD 'password';"
    sql+="CREATE EXTENSION hstore;"
    # Others make them themselves.
    [ "$2" != tokio-postgres ] || sql+="CREATE EXTENSION citext; CREATE EXTENSION ltree;"
    "$bin/psql" -X -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$1" -U postgres -c "$sql"
}

# try_again DRIVER PORT RESULT TICKET
try_again() {
    local try
    for try in $(seq 2 "$tries"); do
        mapfile -t only < <(LC_ALL=C comm -23 "$work/results/direct/$1" "$3")
        [ "${#only[@]}" != 0 ] || break
        "run_$1" "$2" "$3.again" "$4"
        LC_ALL=C comm -12 <(printf '%s\n' "${only[@]}" | LC_ALL=C sort) "$3.again" |
            sed "s/^/passed at try $try: /"
        LC_ALL=C sort -u "$3" "$3.again" -o "$3"
    done
    only=()
}

compare "${drivers[@]}"
