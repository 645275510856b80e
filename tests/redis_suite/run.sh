#!/bin/bash
# Redis's own test suite in external-server mode, three times: direct, through the proxy without a
# rule, and with every key under one rule and a ticket on every connection. Fails where a test
# passes direct and not through the proxy, unless DIFFERENCES.md explains it.
#
#   tests/redis_suite/run.sh [UNIT...]       units as unit/type/incr; all 19 without any
#
# The suite is fetched as a Debian source package into target/redis-suite. Another server, and its
# suite: RINGFENCE_REDIS_SUITE_SERVER names the program (.redis8/valkey-server), and
# RINGFENCE_REDIS_SUITE_SOURCE the release and the package (trixie/valkey); each has its own folder,
# target/redis-suite-trixie-valkey.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
source="${RINGFENCE_REDIS_SUITE_SOURCE:-bookworm/redis}"
release="${source%%/*}" package="${source##*/}"
folder="redis-suite-${source/\//-}"
work="${RINGFENCE_REDIS_SUITE_DIR:-$root/target/${folder/%-bookworm-redis/}}"
# Not resolved: a link's name tells the program what it is to be.
server="$(realpath --no-symlinks "$(command -v "${RINGFENCE_REDIS_SUITE_SERVER:-redis-server}")")"
ringfence="${RINGFENCE_BIN:-$root/target/debug/ringfence}"
# A unit that hangs, as unit/protocol does now and then also direct, is ended.
unit_seconds="${RINGFENCE_REDIS_SUITE_UNIT_SECONDS:-240}"

units=("$@")
if [ "${#units[@]}" = 0 ]; then
    units=(unit/{protocol,multi,introspection,introspection-2,pubsub,tracking,scripting,functions}
        unit/{sort,geo,acl,expire} unit/type/{string,incr,list,hash,set,zset,stream})
fi

fetch() {
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    cd "$work"
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror
    # Where this machine's packages come from: its sources are there too.
    mirror="${RINGFENCE_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' \
        'Codename: bookworm' 'Component: main' | sort -u | sed -n 1p)}"
    printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
        "$mirror" "$release" "$keyring" >apt/debian.sources
    local options=(-qq -o "Dir::Etc::sourcelist=$work/apt/debian.sources"
        -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/apt/lists"
        -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" source --download-only --tar-only "$package"
    rm -rf suite && mkdir suite
    tar xf "${package}"_*.orig.tar.* -C suite --strip-components=1
    cd suite
    ln -sf "$(command -v redis-cli)" "$(command -v redis-server)" src/
    # The suite knows of no tickets: each of its connections presents one before it is used.
    cat >>"tests/support/$package.tcl" <<'TCL'

if {[info exists ::env(FENCE_TICKET)]} {
    rename socket plain_socket
    proc socket {args} {
        set fd [plain_socket {*}$args]
        if {[lindex $args end] == $::env(FENCE_PORT)} {
            fconfigure $fd -translation binary
            puts -nonewline $fd "FENCE SET $::env(FENCE_TICKET)\r\n"
            flush $fd
            gets $fd
        }
        return $fd
    }
}
TCL
    touch "$work/fetched"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

wait_for_port() {
    for _ in $(seq 500); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return 0; fi
        sleep 0.02
    done
    echo "nothing listens on port $1" >&2
    return 1
}

children=()
end_children() {
    for child in "${children[@]}"; do
        kill -9 "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    done
    children=()
}
trap end_children EXIT

# The commands that the proxy denies by default and that the suite is about.
permit='["client|kill", "client|pause", "client|unpause", "debug", "replicaof",
  "slaveof", "migrate", "failover", "pfdebug"]'

# Tests that send on several connections without waiting for what they sent on the one before, and
# expect the server to see it in that order: DIFFERENCES.md. The first one hangs where it does not.
raced=("BRPOPLPUSH with multiple blocked clients")

# start_lockd DIR ADDRESS
start_lockd() {
    local dir="$1" lockd="$2"
    printf 'listen = "%s"\nadmin = "127.0.0.1:%s"\ndata_dir = "%s/lockd"\n' \
        "$lockd" "$(free_port)" "$dir" >"$dir/lockd.toml"
    "$ringfence" lockd --config "$dir/lockd.toml" >"$dir/lockd.log" 2>&1 &
    children+=($!)
    wait_for_port "${lockd##*:}"
}

# take_ticket DIR LOCKD: its holder keeps it until it is ended.
take_ticket() {
    local dir="$1" lockd="$2"
    "$ringfence" lock all --ttl 1h --lockd "http://$lockd" >"$dir/ticket" 2>>"$dir/lockd.log" &
    children+=($!)
    for _ in $(seq 1000); do
        [ ! -s "$dir/ticket" ] || return 0
        sleep 0.02
    done
    echo "no ticket is to be had" >&2
    return 1
}

# run_unit MODE UNIT: one line per test, "ok NAME" or "err NAME", into $work/results.
run_unit() {
    local mode="$1" unit="$2" dir redis port lockd admin
    dir="$work/run" && rm -rf "$dir" && mkdir -p "$dir/redis"
    redis="$(free_port)"
    "$server" --port "$redis" --save "" --dir "$dir/redis" --enable-protected-configs yes \
        --enable-debug-command yes >"$dir/redis.log" 2>&1 &
    children+=($!)
    wait_for_port "$redis"
    port="$redis"
    if [ "$mode" != direct ]; then
        port="$(free_port)" lockd="127.0.0.1:$(free_port)" admin="127.0.0.1:$(free_port)"
        [ "$mode" = open ] || printf '[tickets]\nlockd = "http://%s"\n' "$lockd" >"$dir/tickets.toml"
        cat >"$dir/proxy.toml" <<TOML
instance = "suite"
data_dir = "$dir/data"
$(cat "$dir/tickets.toml" 2>/dev/null || true)
[admin]
listen = "$admin"
[[listener]]
name = "suite"
protocol = "redis"
listen = "127.0.0.1:$port"
upstream = "127.0.0.1:$redis"
trust = "$([ "$mode" = fenced ] && echo signed || echo unsigned)"
permit = $permit
TOML
        if [ "$mode" = fenced ]; then
            printf '[[listener.rule]]\nlock = "all"\nkey = "*"\n' >>"$dir/proxy.toml"
            start_lockd "$dir" "$lockd"
        fi
        "$ringfence" proxy --config "$dir/proxy.toml" --init >"$dir/proxy.log" 2>&1 &
        children+=($!)
        wait_for_port "$port"
        # It is registered with lockd then: a seal before that does not cover it.
        for _ in $(seq 1000); do
            if curl -fs "http://$admin/readyz" >/dev/null; then break; fi
            sleep 0.02
        done
    fi
    if [ "$mode" = fenced ]; then
        take_ticket "$dir" "$lockd"
        FENCE_TICKET="$(<"$dir/ticket")"
        export FENCE_TICKET FENCE_PORT="$port"
    fi
    # The suite listens there: below the ports that connections take (ip(7)).
    local baseport="$((20000 + RANDOM % 12000))" log="$work/results/$mode/${unit//\//-}"
    local skipped=() name
    if [ "$mode" = fenced ]; then
        for name in "${raced[@]}"; do skipped+=(--skiptest "$name"); done
    fi
    (cd "$work/suite" && timeout "$unit_seconds" tclsh tests/test_helper.tcl --host 127.0.0.1 \
        --port "$port" --baseport "$baseport" --clients 1 --tags '-needs:debug -needs:repl' \
        "${skipped[@]}" --single "$unit") >"$log.log" 2>&1 || true
    unset FENCE_TICKET FENCE_PORT
    end_children
    # Without colours and times; a name can pass more than once.
    sed -E 's/\x1b\[[0-9;]*m//g' "$log.log" |
        sed -nE 's/^\[(ok|err|exception)\]: (.*)$/\1 \2/p' |
        sed -E 's/ \([0-9]+ ms\)$//; s/ in tests\/.*$//; s/^exception /err /' |
        LC_ALL=C sort >"$log"
}

[ -e "$work/fetched" ] || fetch
# Results of an earlier run are taken for the modes that are left out.
for mode in ${RINGFENCE_REDIS_SUITE_MODES:-direct open fenced}; do
    rm -rf "$work/results/$mode" && mkdir -p "$work/results/$mode"
    for unit in "${units[@]}"; do
        run_unit "$mode" "$unit"
    done
    cat "$work/results/$mode"/*[!g] | cut -d' ' -f1 | LC_ALL=C sort | uniq -c | tr '\n' ' '
    echo "$mode"
done

# What passes direct and not through the proxy.
unexplained=0
for unit in "${units[@]}"; do
    # unit/acl has no test for an external server.
    if [ "$unit" != unit/acl ] && ! grep -q '^ok ' "$work/results/direct/${unit//\//-}"; then
        echo "NOT RUN: direct $unit" && tail -n 5 "$work/results/direct/${unit//\//-}.log"
        unexplained=1
    fi
done
for mode in open fenced; do
    for unit in "${units[@]}"; do
        file="${unit//\//-}"
        while IFS= read -r name; do
            [ -n "$name" ] || continue
            if grep -qF -- "\`$name\`" "$here/DIFFERENCES.md"; then
                echo "explained: $mode $unit: $name"
            else
                echo "NOT EXPLAINED: $mode $unit: $name"
                unexplained=1
            fi
        done < <(LC_ALL=C comm -23 <(grep '^ok ' "$work/results/direct/$file" | cut -c4-) \
            <(grep '^ok ' "$work/results/$mode/$file" | cut -c4-))
    done
done
exit "$unexplained"
