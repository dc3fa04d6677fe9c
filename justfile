# Shortcuts for the stages of .ci/run, where the commands are. `just` without arguments lists them.

_default:
    @just --list --unsorted

# Everything that must hold before a change is merged
all:
    .ci/run

# Format the sources
format:
    cargo fmt --all
    cargo fmt --manifest-path tools/api/Cargo.toml

# Check the format of the sources
fmt:
    .ci/run fmt

# Lint all targets; a warning is an error
clippy:
    .ci/run clippy

# Build the documentation; a broken link is an error
doc:
    .ci/run doc

# Run tests, all of them or by cargo's options: just test -p gen_durable --test it lanes
test *options:
    .ci/run test {{ options }}

# Run the dashboard's tests in Chromium
browser:
    .ci/run browser

# Write docs/screens again from the demo
screens:
    .ci/run screens

# Run the example programs
examples:
    .ci/run examples

# Run the demo for a few seconds; it must lose nothing
demo:
    .ci/run demo

# Run some workloads of the bench to their end, without valid numbers
bench:
    .ci/run bench

# Compare the public API with docs/api; `just api --bless` writes it
api *options:
    .ci/run api {{ options }}

# Check the licences, advisories and sources of the dependencies
deny *options:
    .ci/run deny {{ options }}

# Check the packages outside of this tree
package:
    .ci/run package

# Check with the oldest Rust that the manifests declare
lowest *options:
    .ci/run lowest {{ options }}

# Write the baseline migration from crates/gen_durable/schema
baseline:
    cargo run -p gen_durable --example baseline
