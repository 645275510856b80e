# shellcheck shell=bash
# A server and a proxy before it, for the scripts in this folder, which set beforehand: here, work,
# ringfence, bin (of the server), run (a folder of one's own).

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

proxy=""
server=""
end_children() {
    [ -z "$proxy" ] || { kill -9 "$proxy" 2>/dev/null || true; wait "$proxy" 2>/dev/null || true; }
    # Immediate shutdown: it takes its own processes with it.
    [ -z "$server" ] || { kill -QUIT "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    proxy="" server=""
}

# start_server PORT [OPTION...]
start_server() {
    local port="$1"
    as_postgres "$bin/initdb" --auth=trust --no-sync --username=postgres --no-locale -E UTF8 \
        -D "$run/data" >/dev/null
    local command=("$bin/postgres" -D "$run/data" -k "$run" -p "$port" -c listen_addresses=127.0.0.1
        -c fsync=off -c max_prepared_transactions=10 -c max_connections=100 "${@:2}")
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

# start_proxy MODE PORT UPSTREAM DATABASE
start_proxy() {
    local mode="$1" port="$2" upstream="$3" database="$4"
    cat >"$run/proxy.toml" <<TOML
instance = "suite"
data_dir = "$run/proxy"
[watermarks]
store = "$([ "$mode" = backend ] && echo backend || echo embedded)"
[admin]
listen = "127.0.0.1:$(free_port)"
[[listener]]
name = "suite"
protocol = "postgres"
listen = "127.0.0.1:$port"
upstream = "127.0.0.1:$upstream"
trust = "unsigned"
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
    proxy=$!
    wait_for_port "$port"
}

# What passes direct and not through the proxy, of the results in $work; fails where DIFFERENCES.md
# does not explain it.
tell_differences() {
    local suite mode name unexplained=0
    for suite in "$@"; do
        if [ ! -s "$work/results/direct/$suite" ]; then
            echo "NOT RUN: direct $suite"
            tail -n 5 "$work/results/direct/$suite.log" || true
            unexplained=1
        fi
        for mode in open fenced backend; do
            [ -e "$work/results/$mode/$suite" ] || continue
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
    return "$unexplained"
}
