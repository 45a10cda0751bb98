#!/usr/bin/env bash
# Runs the benchmarks of the release build (`osdn bench`): JSON lines on stdout; a case that fails its check is not timed.
#   scripts/bench.sh                       all ops, then writes docs/benchmarks/<gpu or cpu>.md: machine, commit, a row a case,
#                                          what peers (docs/benchmarks/peers.jsonl) need on the same machine beside it
#   scripts/bench.sh ARGUMENT...           `osdn bench ARGUMENT...` alone, writes nothing
#   scripts/bench.sh --page LINES MACHINE [RUN...]
#                                          only writes the page, from lines recorded on MACHINE ("NVIDIA H200") and the
#                                          metrics of training runs there; a line measured at another commit names it
#                                          in a field "commit"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

peers=docs/benchmarks/peers.jsonl

ops_table() {  # lines, machine
  echo "| op | pass | shape | gate | write key | dtype | device | ms | spread | graph ms | GB/s | TFLOP/s | share of bound | share of step | best peer ms | times faster | measured at |"
  echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
  awk -v machine="$2" "$awk_value"'
    function known(number) { return number + 0 > 0 ? number : "" }
    function keep_best(pass, ms,    key) {
      key = value("op") "|" pass "|" value("shape") "|" value("gate") "|" value("write_key") "|" value("dtype")
      if (ms != "" && (!(key in peer) || ms + 0 < peer[key] + 0)) peer[key] = ms
    }
    FNR == NR {
      if (value("machine") == machine) { keep_best("forward", value("forward_ms")); keep_best("forward+backward", value("forward_backward_ms")) }
      next
    }
    {
      op = value("op"); pass = value("pass"); ms = value("median_ms")
      key = op "|" pass "|" value("shape") "|" value("gate") "|" value("write_key") "|" value("dtype")
      head = "| " op " | " pass " | " value("shape") " | " value("gate") " | " value("write_key") " | " value("dtype") " | " value("device") " | "
      if (/"failed"/) { print head value("failed") " | | | | | | | | | " value("commit") " |"; next }
      if (/"skipped"/) { print head value("skipped") " | | | | | | | | | " value("commit") " |"; next }
      share = ""
      if (op == "step" && pass == "whole step") whole[value("device")] = ms
      else if (op == "step") share = sprintf("%.1f %%", 100 * ms / whole[value("device")])
      faster = key in peer && ms + 0 > 0 ? sprintf("%.1f", peer[key] / ms) : ""
      print head ms " | " value("spread_ms") " | " value("graph_ms") " | " known(value("gb_per_s")) " | " known(value("tflop_per_s")) " | " \
        known(value("share_of_bound")) " | " share " | " peer[key] " | " faster " | " value("commit") " |"
    }
  ' "$peers" "$1"
}

peers_table() {  # machine
  awk -v machine="$1" "$awk_value"'
    function row() {
      return value("peer") " | " value("version") " | " value("op") " | " value("shape") " | " value("gate") " | " value("write_key") " | " \
        value("dtype") " | " value("forward_ms") " | " value("forward_backward_ms") " | " value("date") " | "
    }
    value("machine") == machine {
      if (!any++) {
        print "\n## Peers\n"
        print "| peer | version | op | shape | gate | write key | dtype | forward ms | forward+backward ms | measured | by |"
        print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
      }
      print "| " row() value("script") " |"
    }
    value("script") == "published" { elsewhere[++count] = "| " row() value("machine") " |" }
    END {
      if (!any || !count) exit
      print "\n## Peers elsewhere\n\nAs published, of other machines or scaled; not in the tables above.\n"
      print "| peer | version | op | shape | gate | write key | dtype | forward ms | forward+backward ms | published | machine |"
      print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
      for (i = 1; i <= count; i++) print elsewhere[i]
    }
  ' "$peers"
}

runs_table() {  # run directories
  echo
  echo "## Training"
  echo
  echo "Runs of the shipped configurations, the first step left out of the rate; no q_geo where it was not collected."
  echo
  echo "| run | steps | tokens a step | first loss | last loss | last q_geo | last q_geo_plain | tokens/s, median | memory GiB |"
  echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
  local run
  for run in "$@"; do
    awk -v run="$(basename "$run")" '
      function value(name) {
        if (!match($0, "\"" name "\": *-?[0-9][-+0-9.eE]*")) return ""
        return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
      }
      { loss = value("loss"); steps = value("step"); tokens = value("tokens"); memory = value("memory_gib")
        if (NR == 1) first = loss; else rate[NR - 1] = value("tokens_per_second")
        if (value("q_geo") != "") { q = value("q_geo"); plain = value("q_geo_plain") } }
      END {
        n = NR - 1
        for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (rate[j] < rate[i]) { t = rate[i]; rate[i] = rate[j]; rate[j] = t }
        printf "| %s | %d | %d | %.3f | %.3f | %s | %s | %d | %.1f |\n", run, steps, tokens / steps, first, loss,
          q == "" ? "" : sprintf("%.3f", q), plain == "" ? "" : sprintf("%.3f", plain), rate[int((n + 1) / 2)], memory
      }
    ' "$run/metrics.jsonl"
  done
}

write_page() {  # lines, machine, name, run directories...
  local lines=$1 machine=$2 page=docs/benchmarks/$3.md
  shift 3
  {
    echo "# Benchmarks on $machine"
    echo
    echo "Written by \`scripts/bench.sh\` at commit $(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown) on $(date -u +%Y-%m-%d)." \
      "Times are medians in milliseconds, spread is the distance of the quartiles; on a GPU with the L2 cache flushed before every run." \
      "\`graph ms\` is the same work replayed from a CUDA graph, without the host's time to launch it." \
      "Rates are of that time where there is one; bytes and operations are the least the op needs (every input, output and what a" \
      "backward must find once), so the share of the bound says how far from the machine's limit it is:" \
      "the nearer of its copy rate and its square matrix product of the same type." \
      "Rows of \`step\` add up one micro-batch, forward, backward and update; its parts are measured alone at the step's shapes." \
      "A row without a commit of its own was measured at the page's."
    echo
    echo "## Ops"
    echo
    ops_table "$lines" "$machine"
    peers_table "$machine"
    [ $# -eq 0 ] || runs_table "$@"
  } >"$page"
  say "wrote $page"
}

page_name() { tr '[:upper:] ' '[:lower:]_' <<<"${1#NVIDIA }"; }

if [ "${1:-}" = --page ]; then
  [ $# -ge 3 ] || fail 2 "scripts/bench.sh --page: expected LINES MACHINE [RUN...]"
  lines=$2 machine=$3
  shift 3
  write_page "$lines" "$machine" "$(page_name "$machine")" "$@"
  exit 0
fi

scripts/setup.sh
configure_and_build release osdn
lines=build/release/bench.jsonl
code=0
run build/release/bin/osdn bench "$@" | tee "$lines" || code=$?
[ $# -eq 0 ] || exit "$code"
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
cpu=$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)
if [ -n "$gpu" ]; then
  write_page "$lines" "$gpu" "$(page_name "$gpu")"
else
  write_page "$lines" "$(nproc) cores of $cpu" cpu
fi
exit "$code"
