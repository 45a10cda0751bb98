#!/usr/bin/env bash
# Trains a small model of every backbone, plain, with OSDN, with OSDN-APF and with the variants that show what each part
# does, on the built-in corpus, and prints docs/backbones/training_sanity.md's table (stdout). About ten minutes on two
# cores. Runs that are complete are not repeated: remove runs/sanity to start over.
#   scripts/training_sanity.sh [--osdn PROGRAM] [--steps N]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
osdn=build/release/bin/osdn
steps=200
while [ $# -gt 0 ]; do
  case "$1" in
    --osdn) osdn=${2:?} ;;
    --steps) steps=${2:?} ;;
    *) fail 2 "usage: scripts/training_sanity.sh [--osdn PROGRAM] [--steps N]" ;;
  esac
  shift 2
done
[ -x "$osdn" ] || fail 3 "$osdn: no such program; build it with: cmake --preset release && cmake --build --preset release"
[ -f shards/quickstart/prepare.json ] || run "$osdn" prepare configs/quickstart.yaml >&2

# The value of a key in the last line of a metrics file that has it.
last() {  # FILE KEY
  grep -o "\"$2\": *-\?[0-9][-+0-9.eE]*" "$1" | tail -1 | sed 's/^[^:]*: *//'
}

number() {  # VALUE DIGITS; a dash where there is none
  [ -n "$1" ] && printf "%.$2f" "$1" || printf -- '-'
}

row() {  # backbone, variant, model.osdn
  local name=sanity-$1-$2 metrics cells=''
  "$osdn" train configs/quickstart.yaml --set run.name="$name" --set run.directory=runs/sanity \
    --set model.backbone="$1" --set model.hidden_size=96 --set model.num_layers=2 --set model.num_heads=3 \
    --set model.head_dim=32 --set model.value_expand=1 --set model.intermediate_size=256 --set model.osdn="$3" \
    --set train.steps="$steps" --set checkpoint.every_steps="$steps" --set evaluation.every_steps="$steps" \
    --set metrics.residual_every_steps=10 --set metrics.tensorboard=false > /dev/null
  metrics=runs/sanity/$name/metrics.jsonl
  for key in validation_loss q_geo q_geo_plain beta_mean write_strength_max d_mean d_at_box retention_mean; do
    cells+=" | $(number "$(last "$metrics" $key)" 4)"
  done
  printf '| %s | %s%s | %s |\n' "$1" "$2" "$cells" "$(grep -c '"skipped": *true' "$metrics" || true)"
}

echo '| backbone | variant | validation loss | q_geo | q_geo_plain | beta_mean | write_strength_max | d_mean | d_at_box | retention_mean | skipped steps |'
echo '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |'
for backbone in delta_net gated_delta_net kda; do
  step=0.1
  [ $backbone = delta_net ] && step=1.0
  row $backbone plain null
  row $backbone osdn "{preset: osdn, step_size: $step}"
  row $backbone osdn_apf "{preset: osdn_apf, step_size: $step}"
  [ $backbone = delta_net ] || row $backbone state_gate "{preset: osdn, step_size: $step, retention: state_gate}"
  # The directions: the rule without beta, forgetting towards 0, forgetting towards 1.
  row $backbone beta_free "{preset: osdn, step_size: $step, hypergradient: beta_free, learn_initial_scale: false}"
  row $backbone retention "{preset: osdn, step_size: $step, retention: constant, learn_initial_scale: false}"
  row $backbone anchored "{preset: osdn, step_size: $step, retention: constant, anchored: true, learn_initial_scale: false}"
done
