#!/usr/bin/env bash
# Same weights, same batches, same curve as flash-linear-attention (fla), on a GPU: DeltaNet with 340M parameters, 300
# steps of 4 x 2048 tokens of the built-in corpus by the recipe of configs/delta_net_340m.yaml. fla makes the weights,
# `osdn import` takes them over, both train from them. Each trains twice, `osdn` with micro-batches of 4 rows and of 1, fla
# with the rows of a batch in both orders: how far rounding alone moves a curve is its band, and the two programs may
# differ by twice the wider one (RMS).
#   tests/interop/fla_curve.sh [OSDN] [CURVES]   the program, build/release/bin/osdn without; a folder for the four curves
# Needs what tests/interop/fla_gpu.sh says, 40 GB of GPU memory and 20 GB of disk in TMPDIR.
# Exit code 77 where it cannot run; 1 when the curves differ.
set -euo pipefail
curves=${2:+$(realpath "$2")}
source "$(dirname "${BASH_SOURCE[0]}")/fla_gpu.sh"
script=$root/tests/interop/fla_curve.py
export CURVE_STEPS=${CURVE_STEPS:-300} CURVE_WARMUP=${CURVE_WARMUP:-30}

osdn_run() {  # name, rows of a micro-batch
  "$osdn" train "$root/configs/delta_net_340m.yaml" --set run.name="$1" --set run.directory=runs \
    --set run.init_from=runs/made --set 'data.train=[shards/train-*.h5]' --set 'data.validation=[shards/valid-*.h5]' \
    --set data.tokenizer=shards/tokenizer.model --set data.sequence_length=2048 --set data.documents=carry \
    --set train.steps="$CURVE_STEPS" --set optimizer.warmup_steps="$CURVE_WARMUP" --set train.global_batch_tokens=8192 \
    --set train.micro_batch_sequences="$2" --set evaluation.sequences=8 --set checkpoint.every_steps=100000
}

"$osdn" prepare --builtin --megabytes 12 --vocab-size 2048 --validation-fraction 0.01 --output shards >log 2>&1 ||
  { cat log; exit 1; }
"$python" "$script" make made
"$osdn" import made --output runs/made --tokenizer shards/tokenizer.model
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
fla_run() {  # name, order of the rows
  "$python" "$script" train made shards "$1.txt" "$2" >"$1.log" 2>&1 &
  pids+=($!)
}
# All at once: fla's time goes into compiling kernels and, step by step, into launching them.
fla_run fla straight
fla_run fla-reversed reversed
osdn_run whole 4
osdn_run split 1
for pid in "${pids[@]}"; do wait "$pid" || { tail -n 40 fla*.log; exit 1; }; done
curve_files=(runs/whole/metrics.jsonl runs/split/metrics.jsonl fla.txt fla-reversed.txt)
if [ -n "$curves" ]; then
  mkdir -p "$curves"
  cp fla*.txt fla*.log "$curves"
  cp "${curve_files[0]}" "$curves/osdn.jsonl"
  cp "${curve_files[1]}" "$curves/osdn-split.jsonl"
fi
"$python" "$script" compare "${curve_files[@]}"
