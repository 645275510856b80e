# shellcheck shell=bash
# What run.sh and drivers.sh have in common: a server of their own, the proxy before it with what
# its mode needs, and the comparison of what passed. They set work (a folder that stays, whose
# results/MODE/NAME are lists of what passed) and bin (the server's programs), and end in compare.
#
# The modes:
#   direct    no proxy
#   open      a proxy without a rule
#   fenced    the whole database under one rule, and a signed ticket of a lockd
#   backend   the same rule and a bare token, the watermarks in the server

# Absolute, since there are steps that work in another folder.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
ringfence="$(realpath -m -- "${RINGFENCE_BIN:-$root/target/debug/ringfence}")"
suite_folder="$(realpath -m -- "${RINGFENCE_POSTGRES_SUITE_DIR:-$root/target/postgres-suite}")"
version=15
# Goes before the name of a test in DIFFERENCES.md, where it is another version's.
major=""

# Of one run, begun anew for each: the user of the server may enter.
base="$(mktemp -d)"
chmod 755 "$base"
run="$base/run"
trap 'end_children; rm -rf "$base"' EXIT

new_run() {
    rm -rf "$run" && mkdir "$run"
    [ "$(id -u)" != 0 ] || chown postgres: "$run"
}

# --- Processes and ports

free_port() {
    python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

# wait_until COMPLAINT COMMAND...: until COMMAND succeeds; the time is for a busy machine.
wait_until() {
    local complaint="$1" deadline=$((SECONDS + 60))
    shift
    until "$@" 2>/dev/null; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            echo "$complaint" >&2
            return 1
        fi
        sleep 0.02
    done
}

takes_connections() {
    (exec 3<>"/dev/tcp/127.0.0.1/$1")
}

wait_for_port() {
    wait_until "nothing listens on port $1" takes_connections "$1"
}

# Postgres refuses to run as root.
unprivileged=()
[ "$(id -u)" != 0 ] || unprivileged=(setpriv --reuid=postgres --regid=postgres --clear-groups)

as_postgres() {
    "${unprivileged[@]}" "$@"
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
    if [ -n "$server" ]; then
        kill -QUIT "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    ours=() server=""
}

# --- The server

# start_server [OPTION...]: sets upstream, its port.
start_server() {
    upstream="$(free_port)"
    as_postgres "$bin/initdb" --auth=trust --no-sync --username=postgres --no-locale -E UTF8 \
        -D "$run/data" >/dev/null
    # Not by as_postgres, which would be a shell of its own: the pid is to be the server's.
    "${unprivileged[@]}" "$bin/postgres" -D "$run/data" -k "$run" -p "$upstream" \
        -c listen_addresses=127.0.0.1 -c fsync=off -c max_prepared_transactions=10 \
        -c max_connections=100 "$@" >"$run/server.log" 2>&1 &
    server=$!
    wait_until "the server is not ready" "$bin/pg_isready" -q -h 127.0.0.1 -p "$upstream"
}

# --- The proxy, and where its tickets come from

# start_fence MODE DATABASE: what MODE puts before the server. Sets port, where the tests are to
# connect, and ticket, which they are to present where it is not empty.
start_fence() {
    local mode="$1" database="$2"
    port="$upstream" ticket=""
    unset PGOPTIONS
    [ "$mode" != direct ] || return 0
    port="$(free_port)"
    # Before the proxy, which is to be registered with it.
    [ "$mode" != fenced ] || start_lockd
    start_proxy "$mode" "$database"
    case "$mode" in
        fenced) take_ticket ;;
        backend) ticket=1 ;;
    esac
}

# start_proxy MODE DATABASE
start_proxy() {
    local mode="$1" database="$2"
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
    wait_until "the proxy is not ready" curl -fs -o /dev/null "http://$admin/readyz"
}

# Sets lockd, its address.
start_lockd() {
    local at
    at="127.0.0.1:$(free_port)"
    lockd="http://$at"
    printf 'listen = "%s"\nadmin = "127.0.0.1:%s"\ndata_dir = "%s"\n' \
        "$at" "$(free_port)" "$run/lockd" >"$run/lockd.toml"
    "$ringfence" lockd --config "$run/lockd.toml" >"$run/lockd.log" 2>&1 &
    ours+=($!)
    wait_for_port "${at##*:}"
}

# Sets ticket. Its holder keeps the lock until it is ended.
holder=""
take_ticket() {
    : >"$run/ticket"
    "$ringfence" lock all --ttl 1h --lockd "$lockd" >"$run/ticket" 2>>"$run/lockd.log" &
    holder=$!
    ours+=("$holder")
    wait_until "no ticket is to be had" test -s "$run/ticket"
    ticket="$(<"$run/ticket")"
}

# check_fence MODE DATABASE: the fence stood all the time, since it turns away the ticket of the run
# once there is a newer one.
check_fence() {
    local mode="$1" older="$ticket" said
    local client=("$bin/psql" -X -h 127.0.0.1 -p "$port" -U postgres -d "$2" -v VERBOSITY=verbose)
    case "$mode" in
        direct | open) return 0 ;;
    esac
    PGOPTIONS="-c ringfence.token=$older" "${client[@]}" -qc 'CREATE TABLE ringfence_suite ()'
    case "$mode" in
        fenced)
            kill "$holder" && wait "$holder" || true
            take_ticket
            ;;
        backend) ticket=$((older + 1)) ;;
    esac
    PGOPTIONS="-c ringfence.token=$ticket" "${client[@]}" -qc 'DROP TABLE ringfence_suite'
    said="$(PGOPTIONS="-c ringfence.token=$older" "${client[@]}" \
        -qc 'CREATE TABLE ringfence_suite ()' 2>&1 || true)"
    case "$said" in
        *RF001*) return 0 ;;
    esac
    echo "the fence of $mode does not turn an older ticket away: $said" >&2
    return 1
}

# --- Modes, and the comparison of what passed in them

# end_run MODE DATABASE RESULT SECONDS: the logs stay beside the result.
end_run() {
    local mode="$1" database="$2" result="$3" log
    for log in proxy server; do
        cp "$run/$log.log" "$result.$log.log" 2>/dev/null || true
    done
    check_fence "$mode" "$database"
    end_children
    echo "$mode ${result##*/}: $(wc -l <"$result") passed in $4 s"
}

# compare NAME...: all of them in each mode by the script's run_one MODE NAME RESULT, which begins
# with start_server and ends with end_run. Results of an earlier run are taken for the modes that
# are left out.
compare() {
    local mode name
    for mode in ${RINGFENCE_POSTGRES_SUITE_MODES:-direct open fenced backend}; do
        mkdir -p "$work/results/$mode"
        for name in "$@"; do
            rm -f "$work/results/$mode/$name" "$work/results/$mode/$name".*
            new_run
            run_one "$mode" "$name" "$work/results/$mode/$name"
        done
    done
    tell_differences "$@"
}

# tell_differences NAME...: what passes direct and not through the proxy; fails where DIFFERENCES.md
# does not explain it.
tell_differences() {
    local name mode test unexplained=0
    for name in "$@"; do
        if [ ! -s "$work/results/direct/$name" ]; then
            echo "NOT RUN: direct $name"
            tail -n 5 "$work/results/direct/$name.log" || true
            unexplained=1
        fi
        for mode in open fenced backend; do
            [ -e "$work/results/$mode/$name" ] || continue
            if grep -q 'panicked at' "$work/results/$mode/$name.proxy.log" 2>/dev/null; then
                echo "PANICKED: $mode $name"
                unexplained=1
            fi
            while IFS= read -r test; do
                if grep -qF -- "\`$major$test\`" "$here/DIFFERENCES.md"; then
                    echo "explained: $mode $name: $test"
                else
                    echo "NOT EXPLAINED: $mode $name: $test"
                    unexplained=1
                fi
            done < <(LC_ALL=C comm -23 "$work/results/direct/$name" "$work/results/$mode/$name")
        done
    done
    return "$unexplained"
}
