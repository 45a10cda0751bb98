#!/usr/bin/env bash
# Same weights, same logits as flash-linear-attention (fla), on a GPU, in both directions and for its three backbones:
# a model trained here, exported and loaded by fla; a model that fla made, imported here. `osdn import --verify` compares
# the logits of fla (bfloat16) with those of the imported model (float32) by relative RMS.
#   tests/interop/fla_logits.sh [OSDN]   the program, build/release/bin/osdn without
# Needs what tests/interop/fla_gpu.sh says. FLA_TOLERANCE: largest relative RMS, 0.02 without.
# Exit code 77 where it cannot run; 1 when any of the six comparisons fails.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/fla_gpu.sh"
tolerance=${FLA_TOLERANCE:-0.02}

model_of() {  # backbone
  case $1 in
    delta_net) echo "{backbone: delta_net, hidden_size: 512, num_layers: 2, num_heads: 4, head_dim: 128}" ;;
    gated_deltanet) echo "{backbone: gated_delta_net, hidden_size: 1024, num_layers: 2, num_heads: 2, head_dim: 256}" ;;
    kda) echo "{backbone: kda, hidden_size: 512, num_layers: 2, num_heads: 4, head_dim: 128}" ;;
  esac
}

from_here() {  # backbone
  cat >"$1.yaml" <<YAML
run: {name: $1, directory: runs}
model: $(model_of "$1")
data: {train: [shards/train-*.h5], validation: [shards/valid-*.h5], tokenizer: shards/tokenizer.model, sequence_length: 256}
optimizer: {warmup_steps: 5}
train: {steps: 20, global_batch_tokens: 4096}
YAML
  "$osdn" train "$1.yaml" && "$osdn" export "runs/$1" --output "$1-exported" &&
    "$python" "$root/tests/interop/fla_logits.py" read "$1-exported" "$1-read.safetensors" &&
    "$osdn" import "$1-exported" --output "runs/$1-read" --verify "$1-read.safetensors" --verify-tolerance "$tolerance"
}

from_fla() {  # backbone
  "$python" "$root/tests/interop/fla_logits.py" make "$1" "$1-made" "$1-made.safetensors" &&
    "$osdn" import "$1-made" --output "runs/$1-made" --verify "$1-made.safetensors" --verify-tolerance "$tolerance"
}

"$osdn" prepare --builtin --megabytes 1 --vocab-size 512 --validation-fraction 0.01 --output shards >prepare.log 2>&1 ||
  { cat prepare.log; exit 1; }
for backbone in delta_net gated_deltanet kda; do  # at once: the time goes into compiling kernels
  for direction in from_here from_fla; do
    { $direction $backbone >"$direction-$backbone.log" 2>&1; echo $? >"$direction-$backbone.rc"; } &
  done
done
wait
failed=0
for log in from_*.log; do
  name=${log%.log}
  echo "== $name: exit code $(cat "$name.rc")"
  if [ "$(cat "$name.rc")" = 0 ]; then
    grep -E "^torch |logits agree" "$log"
  else
    failed=1
    tail -40 "$log"
  fi
done
exit $failed
