#!/usr/bin/env bash
# From a bare machine to a trained model: installs what is missing, builds, prepares the built-in corpus, trains a small
# OSDN model and the same model without OSDN, shows the two side by side, samples from the first, writes report.html.
# Safe to run again: what is done is skipped, and interrupted training goes on where it stopped.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -eq 0 ] || fail 2 "scripts/quickstart.sh takes no arguments"
started=$SECONDS

scripts/setup.sh
configure_and_build release osdn
osdn=build/release/bin/osdn

if [ -f shards/quickstart/prepare.json ]; then
  say ""
  say "shards/quickstart is there already"
else
  run $osdn prepare configs/quickstart.yaml
fi
training=$SECONDS
run $osdn train configs/quickstart.yaml --processes 1  # too small to share among GPUs
run $osdn train configs/quickstart_plain.yaml --processes 1
training=$((SECONDS - training))

# Loss and q_geo of both runs at the same steps, ten rows.
side_by_side() {
  awk '
    function value(name,    found) {
      if (!match($0, "\"" name "\": *-?[0-9][-+0-9.eE]*")) return ""
      found = substr($0, RSTART, RLENGTH)
      sub(/^[^:]*: */, "", found)
      return found
    }
    function cell(array, run, step) { return (run, step) in array ? sprintf("%10.4f", array[run, step]) : sprintf("%10s", "-") }
    FNR == 1 { run++ }
    {
      step = value("step") + 0
      loss[run, step] = value("loss")
      q = value("q_geo")
      if (q != "") {
        q_geo[run, step] = q
        if (run == 1) residual_steps[++count] = step
      }
      valid = value("validation_loss")
      if (valid != "") last_valid[run] = valid
    }
    END {
      if (count == 0) exit
      printf "%8s  %10s %10s   %10s %10s\n", "", "loss", "loss", "q_geo", "q_geo"
      printf "%8s  %10s %10s   %10s %10s\n", "step", "OSDN", "plain", "OSDN", "plain"
      rows = count < 10 ? count : 10
      for (i = 1; i <= rows; i++) {
        step = residual_steps[rows == 1 ? 1 : 1 + int((i - 1) * (count - 1) / (rows - 1) + 0.5)]
        printf "%8d  %s %s   %s %s\n", step, cell(loss, 1, step), cell(loss, 2, step), cell(q_geo, 1, step), cell(q_geo, 2, step)
      }
      if (last_valid[1] != "" && last_valid[2] != "")
        printf "%8s  %10.4f %10.4f   (validation loss at the end)\n", "", last_valid[1], last_valid[2]
    }
  ' "$1" "$2"
}
say ""
say "The same model with and without OSDN. q_geo: how much of a token's error its own write leaves; lower is better."
say ""
side_by_side runs/quickstart-osdn/metrics.jsonl runs/quickstart-plain/metrics.jsonl

checkpoint=runs/quickstart-osdn/checkpoints/$(cat runs/quickstart-osdn/checkpoints/latest)
run $osdn generate "$checkpoint" --prompt "The train" --max-tokens 80 --temperature 0.7 --seed 1
say ""
run $osdn report runs/quickstart-osdn runs/quickstart-plain --output report.html

say ""
say "Done in $((SECONDS - started)) s, of which both trainings took $training s. Open report.html in a browser."
