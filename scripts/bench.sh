#!/usr/bin/env bash
# Runs the op benchmarks of the release build (JSON lines on stdout; a case that fails its check is not timed).
#   scripts/bench.sh            all ops; also writes docs/benchmarks/<gpu or cpu>_ops.md: machine, commit, one row a case
#   scripts/bench.sh OP...      these ops alone, writes nothing
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh
configure_and_build release osdn_bench
lines=build/release/bench.jsonl
code=0
run build/release/bin/osdn_bench "$@" | tee "$lines" || code=$?
[ $# -eq 0 ] || exit "$code"

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
cpu=$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)
name=$(tr '[:upper:] ' '[:lower:]_' <<<"${gpu#NVIDIA }")
page=docs/benchmarks/${name:-cpu}_ops.md
{
  echo "# Ops on ${gpu:-a CPU}"
  echo
  echo "Written by \`scripts/bench.sh\` at commit $(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown) on $(date -u +%Y-%m-%d)," \
    "$(nproc) cores of $cpu${gpu:+, $gpu}. Times are medians;" \
    "the bound is the nearer of this machine's copy rate and its square matrix product of the same type."
  echo
  echo "| op | pass | shape | dtype | device | ms | spread | GB/s | TFLOP/s | share of bound |"
  echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
  awk '
    function value(name,    found) {
      if (!match($0, "\"" name "\": (\"[^\"]*\"|[^,}]*)")) return ""
      found = substr($0, RSTART, RLENGTH)
      sub(/^"[^"]*": /, "", found)
      gsub(/"/, "", found)
      return found
    }
    {
      head = "| " value("op") " | " value("pass") " | " value("shape") " | " value("dtype") " | " value("device") " | "
      if (/"failed"/) print head value("failed") " | | | | |"
      else print head value("median_ms") " | " value("spread_ms") " | " value("gb_per_s") " | " value("tflop_per_s") " | " value("share_of_bound") " |"
    }
  ' "$lines"
} >"$page"
say "wrote $page"
exit "$code"
