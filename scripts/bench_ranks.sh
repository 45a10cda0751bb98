#!/usr/bin/env bash
# Training on several GPUs of this machine against one of them: the same program, one run after the other, on the built-in
# corpus. docs/benchmarks/<gpu>_ranks.md is such a page.
#   scripts/bench_ranks.sh [OPTION...] [CASE...]      JSON lines on stdout, a line a run
#     CASE            CONFIGURATION:SEQUENCES[:KEY=VALUE...]: of configs/, with so many sequences of 2,048 tokens a GPU, and
#                     overrides; without any: DeltaNet and OSDN-DeltaNet, 340M with 16 and 1.3B with 8, and what ZeRO-0 and
#                     q_geo at every step cost
#     --gpus "1 2"    numbers of GPUs; all of one host by default: 1 2 4 8 as far as there are. For one, every GPU trains alone,
#                     all at the same time: GPUs of a host are not equally fast
#     --steps 40      a run, of which the first quarter is left out
#     --binary OSDN   instead of the release build
#   scripts/bench_ranks.sh --page LINES MACHINE       the page on stdout, from lines recorded on MACHINE ("NVIDIA H200")
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tokens=2048
cases=(
  delta_net_340m:16 osdn_delta_net_340m:16
  delta_net_340m:16:distributed.zero=0 osdn_delta_net_340m:16:metrics.residual_every_steps=1
  delta_net_1.3b:8 osdn_delta_net_1.3b:8
)

# Median of a number of metrics.jsonl, without so many lines at the start.
median_of() {  # field, lines to leave out, file
  tail -n +"$(($2 + 1))" "$3" | sed -nE "s/.*\"$1\": ?([-0-9.e+]+).*/\1/p" | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# One run until enough steps are recorded; then it is ended, without a checkpoint.
train_case() {  # case, GPUs, the first of them
  local case=$1 gpus=$2 first=$3 name config sequences settings=() more="" process waited metrics
  IFS=: read -r config sequences more <<<"$case"
  name=$(tr ':=.' '---' <<<"$case")-$gpus-$first
  while [ -n "$more" ]; do
    settings+=(--set "${more%%:*}")
    if [[ $more == *:* ]]; then more=${more#*:}; else more=""; fi
  done
  CUDA_VISIBLE_DEVICES=$(seq -s, "$first" $((first + gpus - 1))) "$binary" train "configs/$config.yaml" \
    --set run.directory="$folder/runs" --set run.name="$name" --set data.train="[$folder/shards/train-*.h5]" --set data.validation=[] \
    --set data.tokenizer="$folder/shards/tokenizer.model" --set data.sequence_length=$tokens \
    --set train.global_batch_tokens=$((gpus * sequences * tokens)) --set train.micro_batch_sequences="$sequences" \
    --set train.steps=1000000 --set checkpoint.every_steps=0 --set checkpoint.every_minutes=0 --set metrics.residual_every_steps=1000000 \
    --set metrics.tensorboard=false --set distributed.max_restarts=0 "${settings[@]}" >"$folder/$name.log" 2>&1 &
  process=$!
  metrics=$folder/runs/$name/metrics.jsonl
  for ((waited = 0; waited < 3000; ++waited)); do
    [ ! -f "$metrics" ] || [ "$(wc -l <"$metrics")" -lt "$steps" ] || break
    kill -0 "$process" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$process" 2>/dev/null || true
  wait "$process" 2>/dev/null || true
  if [ ! -f "$metrics" ] || [ "$(wc -l <"$metrics")" -lt "$steps" ]; then
    tail -5 "$folder/$name.log" >&2
    say "$name: ended before step $steps"
    return 1
  fi
  printf '{"configuration": "%s", "sequences": %d, "settings": "%s", "gpus": %d, "first_gpu": %d, "step_ms": %.2f, "tokens_per_second": %d, "memory_gib": %.2f, "before_activations_gib": %.2f, "loss": %.6f, "commit": "%s"}\n' \
    "$config" "$sequences" "${case#"$config:$sequences"}" "$gpus" "$first" "$(median_of step_milliseconds $((steps / 4)) "$metrics")" \
    "$(median_of tokens_per_second $((steps / 4)) "$metrics" | cut -d. -f1)" "$(median_of memory_gib $((steps - 1)) "$metrics")" \
    "$(sed -nE 's/.*memory before activations: ([0-9.]+) GiB.*/\1/p' "$folder/$name.log" | head -1)" \
    "$(sed -n "${steps}p" "$metrics" | sed -E 's/.*"loss": ?([-0-9.e+]+).*/\1/')" "$(sed -nE 's/.*"commit": ?"([0-9a-f]{1,12}).*/\1/p' "$folder/runs/$name/environment.json" | head -1)"
}

write_page() {  # lines, machine
  echo "# Training on several GPUs: $2"
  echo
  echo "Written by \`scripts/bench_ranks.sh\` on $(date -u +%Y-%m-%d) from runs of the shipped configurations on the built-in corpus, sequences of" \
    "$tokens tokens, one host. Medians over the steps of a run but its first quarter; all runs of a row's commit one after the other on" \
    "the same machine. With one GPU every GPU of the host trains alone, all at the same time. \"Of linear\": tokens/s against the sum of what" \
    "the same GPUs reach alone (where only some were measured, as many times their mean); \"of the slowest\": against so many times the slowest of them, for which the others wait in each step. \"Memory before activations\" is" \
    "what weights, gradients and optimizer state take ([computed](../architecture.md#8-several-ranks-srctraindata_parallelh)), \"peak\" what the" \
    "allocator held."
  echo
  echo "| configuration | sequences a GPU | settings | GPUs | step ms | tokens/s | of linear | of the slowest | memory before activations GiB | peak GiB | last loss | commit |"
  echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
  awk "$awk_value"'
    {
      key = value("configuration") ":" value("sequences")
      settings = value("settings")
      rate = value("tokens_per_second") + 0; gpus = value("gpus") + 0
      if (gpus == 1) { one[key settings, value("first_gpu")] = rate; alone[key settings] = 1 }
      # ZeRO says nothing to one GPU: there the runs without settings are what several are held against.
      base = key settings in alone ? key settings : key
      linear = slowest = ""
      if (gpus > 1 && base in alone) {
        sum = known = 0
        for (i = 0; i < gpus; i++)
          if ((base, i) in one) { sum += one[base, i]; if (!known++ || one[base, i] < least) least = one[base, i] }
        linear = sprintf("%.1f %%", 100 * rate / (gpus * sum / known))
        slowest = sprintf("%.1f %%", 100 * rate / (gpus * least))
      }
      gsub(/:/, " ", settings)
      print "| " value("configuration") " | " value("sequences") " |" settings " | " (gpus == 1 ? "number " value("first_gpu") : gpus) " | " value("step_ms") " | " value("tokens_per_second") " | " \
        linear " | " slowest " | " value("before_activations_gib") " | " value("memory_gib") " | " value("loss") " | " value("commit") " |"
    }
  ' "$1"
}

if [ "${1:-}" = --page ]; then
  [ $# -eq 3 ] || fail 2 "scripts/bench_ranks.sh --page: expected LINES MACHINE"
  write_page "$2" "$3"
  exit 0
fi

steps=40 binary="" numbers="" chosen=()
while [ $# -gt 0 ]; do
  case $1 in
    --gpus) numbers=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --binary) binary=$2; shift 2 ;;
    -*) fail 2 "scripts/bench_ranks.sh: unknown option $1" ;;
    *) chosen+=("$1"); shift ;;
  esac
done
[ ${#chosen[@]} -eq 0 ] || cases=("${chosen[@]}")
for case in "${cases[@]}"; do
  [[ $case =~ ^[^:]+:[0-9]+(:[^:=]+=[^:]+)*$ && -f configs/${case%%:*}.yaml ]] || fail 2 "expected CONFIGURATION:SEQUENCES[:KEY=VALUE...], got $case"
done
if [ -z "$binary" ]; then
  scripts/setup.sh
  configure_and_build release osdn
  binary=build/release/bin/osdn
fi
present=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
[ "$present" -ge 1 ] || fail 3 "scripts/bench_ranks.sh: no GPU"
if [ -z "$numbers" ]; then for number in 1 2 4 8; do [ "$number" -gt "$present" ] || numbers="$numbers $number"; done; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$binary" prepare --builtin --megabytes 8 --vocab-size 512 --output "$folder/shards" >/dev/null 2>"$folder/prepare.log" || fail 3 "$(tail -1 "$folder/prepare.log")"
code=0
for case in "${cases[@]}"; do
  for number in $numbers; do
    # With ZeRO-0 one GPU is the same run.
    if [ "$number" -gt 1 ]; then
      train_case "$case" "$number" 0 || code=3
    elif [[ $case != *distributed.zero=* ]]; then
      started=()
      for ((gpu = 0; gpu < present; ++gpu)); do
        train_case "$case" 1 "$gpu" &
        started+=($!)
      done
      for process in "${started[@]}"; do wait "$process" || code=3; done
    fi
  done
done
exit "$code"
