#!/usr/bin/env bash
# Training on several GPUs of this machine against one of them, on the built-in corpus: how fast, what the exchange between
# ranks costs, and whether nothing is lost. docs/benchmarks/<gpu>_ranks.md is such a page.
#   scripts/bench_ranks.sh [OPTION...] [CASE...]      JSON lines on stdout, a line a measurement
#     CASE            CONFIGURATION:SEQUENCES[:KEY=VALUE...]: of configs/, with so many sequences of 2,048 tokens a GPU, and
#                     overrides; without any: DeltaNet and OSDN-DeltaNet, 340M with 16 and 1.3B with 8, and, on all GPUs, what
#                     ZeRO-0 and q_geo at every step cost
#     --parts "..."   which, in this order; all of them by default:
#                       rates      tokens/s of every case. For one GPU, every GPU trains alone, all at the same time: GPUs of a
#                                  host are not equally fast. Jobs that fit beside each other run at the same time
#                       curve      the losses of one global batch on every number of GPUs against those on one
#                       kill       a rank dies (SIGKILL) on the largest number of GPUs; its losses against the undisturbed run's.
#                                  Needs "curve"
#                       resume     that run goes on with two GPUs; its losses against those on one. Needs "kill"
#                       exchange   `osdn bench exchange` of every case: how long it takes, and how much of that the passes hide
#     --gpus "1 2"    numbers of GPUs; all of one host by default: 1 2 4 8 as far as there are
#     --steps 40      of rates a run, of which the first quarter is left out; "curve" has twice as many, "exchange" half
#     --cpu           processes on the processor, over Gloo, instead of GPUs, and tiny models: tries the script on any machine
#     --binary OSDN   instead of the release build
#   scripts/bench_ranks.sh --page LINES MACHINE       the page on stdout, from lines recorded on MACHINE ("NVIDIA H200")
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source scripts/bench_ranks_page.sh

tokens=2048 megabytes=8
cases=(delta_net_340m:16 osdn_delta_net_340m:16 delta_net_1.3b:8 osdn_delta_net_1.3b:8)
cases_of_all_gpus=(
  osdn_delta_net_340m:16:metrics.residual_every_steps=1 osdn_delta_net_1.3b:8:metrics.residual_every_steps=1
  delta_net_340m:16:metrics.residual_every_steps=1 delta_net_340m:16:distributed.zero=0
)
curve_case=osdn_delta_net_340m:16  # of the whole global batch
common=(
  --set data.validation=[] --set train.steps=1000000 --set checkpoint.every_steps=0 --set checkpoint.every_minutes=0
  --set metrics.residual_every_steps=1000000 --set metrics.tensorboard=false --set distributed.max_restarts=0
)

lines_of() {  # file
  local count=0
  [ ! -f "$1" ] || count=$(wc -l <"$1")
  echo "$count"
}

# A number of every step of a run, a line each.
values_of() {  # field, file
  sed -nE "s/.*\"$1\": ?([-0-9.e+]+).*/\1/p" "$2"
}

# Median of a number of a run's steps, without so many at the start.
median_of() {  # field, lines to leave out, file
  values_of "$1" "$3" | tail -n +"$(($2 + 1))" | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

commit_of() {  # run's name
  sed -nE 's/.*"commit": ?"([0-9a-f]{1,12}).*/\1/p' "$folder/runs/$1/environment.json" | head -1
}

# Splits CONFIGURATION:SEQUENCES[:KEY=VALUE...] into `config`, `sequences` and the --set arguments `settings`.
split_case() {  # case
  local more=""
  IFS=: read -r config sequences more <<<"$1"
  settings=()
  while [ -n "$more" ]; do
    settings+=(--set "${more%%:*}")
    if [[ $more == *:* ]]; then more=${more#*:}; else more=""; fi
  done
}

# In the background: `process` and `metrics` are its.
start_run() {  # name, GPUs, the first of them, configuration, arguments...
  local name=$1 gpus=$2 first=$3 configuration=$4
  shift 4
  CUDA_VISIBLE_DEVICES=$(seq -s, "$first" $((first + gpus - 1))) "$binary" train "configs/$configuration.yaml" --processes "$gpus" \
    --set run.directory="$folder/runs" --set run.name="$name" "${on_device[@]}" "${on_data[@]}" "${common[@]}" "$@" \
    >>"$folder/$name.log" 2>&1 &
  process=$!
  metrics=$folder/runs/$name/metrics.jsonl
}

# Until so many steps of `metrics` are recorded; fails, with the end of the log, when `process` ends before.
wait_for_steps() {  # name, steps
  local waited
  for ((waited = 0; waited < 3000; ++waited)); do
    [ "$(lines_of "$metrics")" -lt "$2" ] || return 0
    kill -0 "$process" 2>/dev/null || break
    sleep 0.1
  done
  [ "$(lines_of "$metrics")" -lt "$2" ] || return 0
  tail -5 "$folder/$1.log" >&2
  say "$1: ended before step $2"
  return 1
}

# Without a checkpoint.
end_run() {
  kill -KILL "$process" 2>/dev/null || true
  wait "$process" 2>/dev/null || true
}

train_case() {  # case, GPUs, the first of them
  local case=$1 gpus=$2 first=$3 name config sequences settings process metrics done=0
  split_case "$case"
  name=$(tr ':=.' '---' <<<"$case")-$gpus-$first
  start_run "$name" "$gpus" "$first" "$config" --set train.global_batch_tokens=$((gpus * sequences * tokens)) \
    --set train.micro_batch_sequences="$sequences" "${settings[@]}"
  wait_for_steps "$name" "$steps" || done=1
  end_run
  [ $done -eq 0 ] || return 1
  printf '{"kind": "rate", "configuration": "%s", "sequences": %d, "settings": "%s", "gpus": %d, "first_gpu": %d, "step_ms": %.2f, "tokens_per_second": %d, "memory_gib": %.2f, "before_activations_gib": %.2f, "loss": %.6f, "commit": "%s"}\n' \
    "$config" "$sequences" "${case#"$config:$sequences"}" "$gpus" "$first" "$(median_of step_milliseconds $((steps / 4)) "$metrics")" \
    "$(median_of tokens_per_second $((steps / 4)) "$metrics" | cut -d. -f1)" "$(median_of memory_gib $((steps - 1)) "$metrics")" \
    "$(sed -nE 's/.*memory before activations: ([0-9.]+) GiB.*/\1/p' "$folder/$name.log" | head -1)" \
    "$(values_of loss "$metrics" | sed -n "${steps}p")" "$(commit_of "$name")"
}

# A function for every number of GPUs that it is given, as many at the same time as find GPUs of their own.
beside_each_other() {  # function, its argument, numbers...
  local work=$1 argument=$2 number next=0 started=() one
  shift 2
  finish() { for one in "${started[@]}"; do wait "$one" || code=3; done; started=(); }
  for number in "$@"; do
    if [ $((next + number)) -gt "$present" ]; then finish; next=0; fi
    "$work" "$argument" "$number" "$next" &
    started+=($!)
    next=$((next + number))
  done
  finish
}

rates_of() {  # case, numbers...
  local case=$1 ones=() others=() number
  shift
  for number in "$@"; do
    if [ "$number" -gt 1 ]; then others+=("$number")
    # With ZeRO-0 one GPU is the same run.
    elif [[ $case != *distributed.zero=* ]]; then while [ ${#ones[@]} -lt "$alone" ]; do ones+=(1); done; fi
  done
  beside_each_other train_case "$case" "${ones[@]}"
  beside_each_other train_case "$case" "${others[@]}"
}

measure_rates() {
  local case
  for case in "${cases[@]}"; do rates_of "$case" "${numbers[@]}"; done
  for case in "${cases_of_all_gpus[@]}"; do rates_of "$case" "$most"; done
}

# How far two runs' losses are apart over the steps that both have, of the curve's: "steps differing largest", the last relative.
compare_losses() {  # metrics, metrics
  paste <(values_of loss "$1") <(values_of loss "$2") | head -n $((2 * steps)) | awk '
    NF == 2 { n++; d = $1 / $2 - 1; if (d < 0) d = -d; if (d > most) most = d; if ($1 != $2) differing++ }
    END { printf "%d %d %.2e", n, differing, most }'
}

# A run of the curve's global batch on so many GPUs, in micro-batches that fit them all.
start_curve() {  # name, GPUs, the first of them, arguments...
  local name=$1 gpus=$2 first=$3 config sequences settings
  shift 3
  split_case "$curve_case"
  start_run "$name" "$gpus" "$first" "$config" --set train.global_batch_tokens=$((sequences * tokens)) \
    --set train.micro_batch_sequences=$((sequences / most)) "${settings[@]}" "$@"
}

train_curve() {  # any, GPUs, the first of them
  local process metrics
  start_curve "curve-$2" "$2" "$3"
  wait_for_steps "curve-$2" $((2 * steps)) || { end_run; return 1; }
  end_run
}

curve_line() {  # kind, GPUs, metrics, metrics to compare with, name of the run, further fields
  local compared
  read -r -a compared <<<"$(compare_losses "$3" "$4")"
  printf '{"kind": "%s", "configuration": "%s", "global_sequences": %d, "gpus": %d, "steps": %d, "first_loss": %s, "last_loss": %s, "differing": %d, "largest_difference": %s%s, "commit": "%s"}\n' \
    "$1" "${curve_case%%:*}" "$(cut -d: -f2 <<<"$curve_case")" "$2" "${compared[0]}" "$(values_of loss "$3" | head -1)" \
    "$(values_of loss "$3" | sed -n "${compared[0]}p")" "${compared[1]}" "${compared[2]}" "$6" "$(commit_of "$5")"
}

curve_of() { echo "$folder/runs/curve-$1/metrics.jsonl"; }

measure_curve() {
  local number
  beside_each_other train_curve "" "${numbers[@]}"
  for number in "${numbers[@]}"; do
    [ ! -f "$(curve_of "$number")" ] || [ ! -f "$(curve_of 1)" ] || curve_line curve "$number" "$(curve_of "$number")" "$(curve_of 1)" "curve-$number" ""
  done
}

# The process of a rank: a child of the launcher with it in its environment.
process_of_rank() {  # launcher, rank
  local child
  for child in $(cat "/proc/$1/task/$1/children"); do
    if tr '\0' '\n' <"/proc/$child/environ" | grep -qx "RANK=$2"; then echo "$child"; return; fi
  done
}

measure_kill() {
  local process metrics rank=$((most - 1)) victim at began lost resumed status=0
  start_curve kill "$most" 0 --set distributed.max_restarts=2 --set checkpoint.every_steps=$((steps / 4)) --set checkpoint.keep_last=1
  # The second checkpoint waits until the first is complete.
  wait_for_steps kill $((steps / 2 + 1)) || { end_run; return 1; }
  began=$(date +%s.%N)
  victim=$(process_of_rank "$process" "$rank")
  [ -n "$victim" ] || { say "kill: found no process of rank $rank"; end_run; return 1; }
  kill -KILL "$victim"
  at=$(lines_of "$metrics")
  # The step that was under way may still be recorded; the restart cuts off what came after the checkpoint.
  while kill -0 "$process" 2>/dev/null && [ "$(grep -cE "memory before activations" "$folder/kill.log")" -lt 2 ]; do sleep 0.05; done
  wait_for_steps kill $((at + 2)) || { end_run; return 1; }
  lost=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  wait_for_steps kill "$steps" || { end_run; return 1; }
  kill -TERM "$process"
  wait "$process" || status=$?
  resumed=$(sed -nE 's/.*resuming from .*\(step ([0-9]+),.*/\1/p' "$folder/kill.log" | head -1)
  curve_line kill "$most" "$metrics" "$(curve_of "$most")" kill \
    ", \"rank\": $rank, \"after_step\": $at, \"resumed_from\": ${resumed:-0}, \"seconds_lost\": $lost, \"exit_code\": $status"
}

measure_resume() {
  local process metrics=$folder/runs/kill/metrics.jsonl from fewer=2
  from=$(lines_of "$metrics")
  [ "$most" -gt 2 ] || fewer=1
  start_curve kill "$fewer" 0
  wait_for_steps kill $((from + steps / 4)) || { end_run; return 1; }
  end_run
  curve_line resume "$fewer" "$metrics" "$(curve_of 1)" kill ", \"before\": $most, \"after_step\": $from"
}

bench_exchange() {  # case, GPUs, the first of them
  local config sequences settings name line
  split_case "$1"
  name=exchange-$(tr ':=.' '---' <<<"$1")-$2
  CUDA_VISIBLE_DEVICES=$(seq -s, "$3" $(($3 + $2 - 1))) "$binary" bench exchange "configs/$config.yaml" --processes "$2" --steps $((steps / 2)) \
    "${on_device[@]}" "${on_data[@]}" --set train.global_batch_tokens=$(($2 * sequences * tokens)) \
    --set train.micro_batch_sequences="$sequences" "${settings[@]}" >"$folder/$name.jsonl" 2>"$folder/$name.log" ||
    { tail -5 "$folder/$name.log" >&2; say "$name: failed"; return 1; }
  line=$(cat "$folder/$name.jsonl")
  printf '{"kind": "exchange", "settings": "%s", "gpus": %d, %s\n' "${1#"$config:$sequences"}" "$2" "${line#\{}"
}

measure_exchange() {
  local case
  for case in "${cases[@]}"; do beside_each_other bench_exchange "$case" "${several[@]}"; done
}

if [ "${1:-}" = --page ]; then
  [ $# -eq 3 ] || fail 2 "scripts/bench_ranks.sh --page: expected LINES MACHINE"
  write_page "$2" "$3"
  exit 0
fi

steps=40 binary="" parts="rates curve kill resume exchange" numbers=() chosen=() on_cpu=no
while [ $# -gt 0 ]; do
  case $1 in
    --parts) parts=$2; shift 2 ;;
    --gpus) read -r -a numbers <<<"$2"; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --cpu) on_cpu=yes; shift ;;
    --binary) binary=$2; shift 2 ;;
    -*) fail 2 "scripts/bench_ranks.sh: unknown option $1" ;;
    *) chosen+=("$1"); shift ;;
  esac
done
on_device=()
if [ $on_cpu = yes ]; then
  tokens=32 megabytes=1
  cases=(quickstart_plain:1 quickstart:1) cases_of_all_gpus=(quickstart:1:metrics.residual_every_steps=1) curve_case=quickstart:8
  on_device=(--set run.device=cpu)
  for setting in hidden_size=32 num_layers=2 num_heads=1 head_dim=32 intermediate_size=64; do on_device+=(--set "model.$setting"); done
fi
[ ${#chosen[@]} -eq 0 ] || cases=("${chosen[@]}") cases_of_all_gpus=()
for case in "${cases[@]}"; do
  [[ $case =~ ^[^:]+:[0-9]+(:[^:=]+=[^:]+)*$ && -f configs/${case%%:*}.yaml ]] || fail 2 "expected CONFIGURATION:SEQUENCES[:KEY=VALUE...], got $case"
done
[[ $steps =~ ^[0-9]+$ && $steps -ge 8 ]] || fail 2 "--steps: expected a number from 8, got $steps"
for part in $parts; do
  [[ " rates curve kill resume exchange " == *" $part "* ]] || fail 2 "--parts: expected some of rates curve kill resume exchange, got $part"
done
[[ " $parts " != *" kill "* || " $parts " == *" curve "*kill* ]] || fail 2 "--parts: kill needs curve before it"
[[ " $parts " != *" resume "* || " $parts " == *" kill "*resume* ]] || fail 2 "--parts: resume needs kill before it"
if [ -z "$binary" ]; then
  scripts/setup.sh
  configure_and_build release osdn
  binary=build/release/bin/osdn
fi
if [ $on_cpu = yes ]; then present=8; else present=$(nvidia-smi --list-gpus 2>/dev/null | wc -l); fi
[ "$present" -ge 1 ] || fail 3 "scripts/bench_ranks.sh: no GPU; --cpu tries the script without"
if [ ${#numbers[@]} -eq 0 ]; then for number in 1 2 4 8; do [ "$number" -gt "$present" ] || numbers+=("$number"); done; fi
most=0 several=()
for number in "${numbers[@]}"; do
  [ "$number" -le "$present" ] || fail 2 "--gpus: $number, but there are $present"
  [ "$number" -le "$most" ] || most=$number
  [ "$number" -eq 1 ] || several+=("$number")
done
alone=$present  # GPUs that train by themselves; processors are all alike
[ $on_cpu = no ] || alone=1
[ $(($(cut -d: -f2 <<<"$curve_case") % most)) -eq 0 ] || parts=$(sed -E 's/curve|kill|resume//g' <<<"$parts")
[ "$most" -gt 1 ] || parts=$(sed -E 's/kill|resume|exchange//g' <<<"$parts")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$binary" prepare --builtin --megabytes $megabytes --vocab-size 512 --output "$folder/shards" >/dev/null 2>"$folder/prepare.log" || fail 3 "$(tail -1 "$folder/prepare.log")"
on_data=(--set data.train="[$folder/shards/train-*.h5]" --set data.tokenizer="$folder/shards/tokenizer.model" --set data.sequence_length=$tokens)
code=0
for part in $parts; do
  began=$SECONDS
  "measure_$part" || code=3
  say "$part: $((SECONDS - began)) s"
done
exit "$code"
