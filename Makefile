# `make dev` runs the main job; `make test` runs every test; `make check` everything that needs no test.

.PHONY: dev test check

dev:
	cargo run --release -- dev

test:
	cargo nextest run
	cargo test --doc

check:
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
