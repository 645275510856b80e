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
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${RINGFENCE_POSTGRES_SUITE_DIR:-$root/target/postgres-suite}"
ringfence="${RINGFENCE_BIN:-$root/target/debug/ringfence}"
version=15
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
}

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

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

wait_for_port() {
    for _ in $(seq 1000); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return 0; fi
        sleep 0.02
    done
    echo "nothing listens on port $1" >&2
    return 1
}

as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=postgres --regid=postgres --clear-groups "$@"
    else
        "$@"
    fi
}

ours=()
server=""
end_children() {
    local pid
    for pid in "${ours[@]}"; do
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    # Immediate shutdown: it takes its own processes with it.
    [ -z "$server" ] || { kill -QUIT "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    ours=() server=""
}
base="$(mktemp -d)"
trap 'end_children; rm -rf "$base"' EXIT
run="$base/run"

start_server() {
    local port="$1"
    as_postgres "$bin/initdb" --auth=trust --no-sync --username=postgres --no-locale -E UTF8 \
        -D "$run/data" >/dev/null
    local command=("$bin/postgres" -D "$run/data" -k "$run" -p "$port" -c listen_addresses=127.0.0.1
        -c fsync=off -c max_prepared_transactions=10 -c max_connections=100)
    # Its pid is the server's own.
    if [ "$(id -u)" = 0 ]; then
        command=(setpriv --reuid=postgres --regid=postgres --clear-groups "${command[@]}")
    fi
    "${command[@]}" >"$run/server.log" 2>&1 &
    server=$!
    wait_for_port "$port"
    for _ in $(seq 500); do
        if "$bin/pg_isready" -q -h 127.0.0.1 -p "$port"; then return 0; fi
        sleep 0.02
    done
}

# start_proxy MODE PORT UPSTREAM DATABASE LOCKD
start_proxy() {
    local mode="$1" port="$2" upstream="$3" database="$4" lockd="$5"
    local store=embedded tickets="" trust=unsigned admin
    admin="127.0.0.1:$(free_port)"
    case "$mode" in
        backend) store=backend ;;
        fenced) tickets="lockd = \"$lockd\"" trust=signed ;;
    esac
    cat >"$run/proxy.toml" <<TOML
instance = "suite"
data_dir = "$run/proxy"
[tickets]
$tickets
[watermarks]
store = "$store"
[admin]
listen = "$admin"
[[listener]]
name = "suite"
protocol = "postgres"
listen = "127.0.0.1:$port"
upstream = "127.0.0.1:$upstream"
trust = "$trust"
TOML
    if [ "$mode" != open ]; then
        printf '[[listener.rule]]\nlock = "all"\ndatabase = "%s"\n' "$database" >>"$run/proxy.toml"
    fi
    # The tests are a superuser's: only a superuser ends its sessions.
    printf '[listener.control]\nuser = "postgres"\n' >>"$run/proxy.toml"
    if [ "$mode" = backend ]; then
        "$ringfence" proxy --config "$run/proxy.toml" --install >>"$run/proxy.log" 2>&1
    fi
    "$ringfence" proxy --config "$run/proxy.toml" --init >>"$run/proxy.log" 2>&1 &
    ours+=($!)
    wait_for_port "$port"
    # It is registered with lockd then: a seal before that does not cover it.
    for _ in $(seq 1000); do
        if curl -fs "http://$admin/readyz" >/dev/null; then return 0; fi
        sleep 0.02
    done
    echo "the proxy is not ready" >&2
    return 1
}

# start_lockd PORT
start_lockd() {
    printf 'listen = "127.0.0.1:%s"\nadmin = "127.0.0.1:%s"\ndata_dir = "%s"\n' \
        "$1" "$(free_port)" "$run/lockd" >"$run/lockd.toml"
    "$ringfence" lockd --config "$run/lockd.toml" >"$run/lockd.log" 2>&1 &
    ours+=($!)
    wait_for_port "$1"
}

# take_ticket LOCKD: its holder keeps it until it is ended.
holder=""
take_ticket() {
    : >"$run/ticket"
    "$ringfence" lock all --ttl 1h --lockd "$1" >"$run/ticket" 2>>"$run/lockd.log" &
    holder=$!
    ours+=("$holder")
    for _ in $(seq 1000); do
        [ ! -s "$run/ticket" ] || return 0
        sleep 0.02
    done
    echo "no ticket is to be had" >&2
    return 1
}

# check_fence MODE PORT DATABASE LOCKD: the fence stood all the time, since it turns away the ticket
# of the run once there is a newer one.
check_fence() {
    local mode="$1" older="$PGOPTIONS" newer="-c ringfence.token=2" said
    local client=("$bin/psql" -X -h 127.0.0.1 -p "$2" -U postgres -d "$3" -v VERBOSITY=verbose)
    PGOPTIONS="$older" "${client[@]}" -qc 'CREATE TABLE ringfence_suite ()'
    if [ "$mode" = fenced ]; then
        kill "$holder" && wait "$holder" || true
        take_ticket "$4"
        newer="-c ringfence.token=$(<"$run/ticket")"
    fi
    PGOPTIONS="$newer" "${client[@]}" -qc 'DROP TABLE ringfence_suite'
    said="$(PGOPTIONS="$older" "${client[@]}" -qc 'CREATE TABLE ringfence_suite ()' 2>&1 || true)"
    case "$said" in
        *RF001*) return 0 ;;
    esac
    echo "the fence of $mode does not turn an older ticket away: $said" >&2
    return 1
}

# The names of what passed, and of what failed, from a log of pg_regress.
passed() {
    sed -nE 's/^(test |     )([A-Za-z0-9_.-]+) +\.\.\. ok .*/\2/p' "$1" | LC_ALL=C sort -u
}
failed() {
    sed -nE 's/^(test |     )([A-Za-z0-9_.-]+) +\.\.\. FAILED .*/\2/p' "$1" | LC_ALL=C sort -u
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
    mkdir -p "$run/isolation/out"
    [ "$(id -u)" != 0 ] || chown -R postgres: "$run/isolation"
    as_postgres timeout "$suite_seconds" "$lib/pgxs/src/test/isolation/pg_isolation_regress" \
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

# Where everybody may read it: the tree of the sources may be somebody's own.
cp -r "$work/server/usr" "$base/usr"
chmod -R u=rwX,go=rX "$base"
bin="$base/usr/lib/postgresql/$version/bin"
lib="$base/usr/lib/postgresql/$version/lib"
LD_LIBRARY_PATH="$(dirname "$base"/usr/lib/*/libpq.so)"
export LD_LIBRARY_PATH

# run_one MODE SUITE: what passed goes to $work/results/MODE/SUITE.
run_one() {
    local mode="$1" suite="$2" upstream port lockd database=regression
    # A test of the isolation schedule names its own.
    [ "$suite" != isolation ] || database=isolation_regression
    rm -rf "$run" && mkdir "$run"
    [ "$(id -u)" != 0 ] || chown postgres: "$run"
    upstream="$(free_port)"
    start_server "$upstream"
    port="$upstream"
    unset PGOPTIONS
    if [ "$mode" != direct ]; then
        port="$(free_port)" lockd="http://127.0.0.1:$(free_port)"
        [ "$mode" != fenced ] || start_lockd "${lockd##*:}"
        start_proxy "$mode" "$port" "$upstream" "$database" "$lockd"
    fi
    case "$mode" in
        fenced)
            take_ticket "$lockd"
            PGOPTIONS="-c ringfence.token=$(<"$run/ticket")"
            export PGOPTIONS
            ;;
        backend) export PGOPTIONS="-c ringfence.token=1" ;;
    esac
    local started=$SECONDS
    "run_$suite" "$port" "$work/results/$mode/$suite" "$mode"
    local seconds=$((SECONDS - started))
    case "$mode" in
        fenced | backend) check_fence "$mode" "$port" "$database" "$lockd" ;;
    esac
    cp "$run/proxy.log" "$work/results/$mode/$suite.proxy.log" 2>/dev/null || true
    end_children
    echo "$mode $suite: $(wc -l <"$work/results/$mode/$suite") passed in $seconds s"
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

# What passes direct and not through the proxy.
unexplained=0
for suite in "${suites[@]}"; do
    if [ ! -s "$work/results/direct/$suite" ]; then
        echo "NOT RUN: direct $suite"
        tail -n 5 "$work/results/direct/$suite.log" || true
        unexplained=1
    fi
    for mode in open fenced backend; do
        [ -e "$work/results/$mode/$suite" ] || continue
        if grep -q 'panicked at' "$work/results/$mode/$suite.proxy.log" 2>/dev/null; then
            echo "PANICKED: $mode $suite"
            unexplained=1
        fi
        while IFS= read -r name; do
            [ -n "$name" ] || continue
            if grep -qF -- "\`$name\`" "$here/DIFFERENCES.md"; then
                echo "explained: $mode $suite: $name"
            else
                echo "NOT EXPLAINED: $mode $suite: $name"
                unexplained=1
            fi
        done < <(LC_ALL=C comm -23 "$work/results/direct/$suite" "$work/results/$mode/$suite")
    done
done
exit "$unexplained"
