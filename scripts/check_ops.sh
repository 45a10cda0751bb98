#!/usr/bin/env bash
# Every op has its companions under one stem (docs/contributing.md): source, reference, test, benchmark, page of maths, and
# CUDA sources once kernels/<stem>.h exists. Prints what is missing; exit code 1 if anything is.
#   scripts/check_ops.sh                 this repository
#   scripts/check_ops.sh --root DIR      another tree
#   scripts/check_ops.sh --self-test     takes each companion away in turn and fails unless that is noticed
set -euo pipefail
script=$(readlink -f "${BASH_SOURCE[0]}")
root=$(dirname "$(dirname "$script")")

# Headers of src/ops that declare no op of their own: they need a source and a test.
helpers='sequences'
# Sums collected by other ops: a page of maths as well, but they are checked and timed with those ops.
statistics='residual_stats'

one_of() { [[ " $2 " == *" $1 "* ]]; }

check() {  # DIR
  local missing=0 header stem file needed
  need() {
    [[ -e $1/$2 ]] && return
    echo "$2: missing; op $3 needs it (docs/howto/add_an_op.md)"
    missing=1
  }
  for header in "$1"/src/ops/*.h; do
    stem=$(basename "$header" .h)
    needed="src/ops/$stem.cpp tests/ops/${stem}_test.cpp"
    if ! one_of "$stem" "$helpers"; then
      needed+=" docs/ops/$stem.md"
      one_of "$stem" "$statistics" || needed+=" src/ops/${stem}_ref.cpp tests/bench/${stem}_bench.cpp"
    fi
    for file in $needed; do need "$1" "$file" "$stem"; done
    if [[ -e $1/kernels/$stem.h ]] && ! compgen -G "$1/kernels/${stem}*.cu" > /dev/null; then
      echo "kernels/$stem*.cu: missing; kernels/$stem.h declares launches"
      missing=1
    fi
  done
  for file in "$1"/docs/ops/*.md; do
    stem=$(basename "$file" .md)
    if ! compgen -G "$1/src/*/$stem.h" > /dev/null; then
      echo "docs/ops/$stem.md: no src/*/$stem.h; a page of maths belongs to a header of its name"
      missing=1
    fi
  done
  return $missing
}

self_test() {
  local tree failed=0 file
  tree=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now: the variable is gone when the trap runs
  trap "rm -rf '$tree'" EXIT
  mkdir -p "$tree"/{src/ops,tests/ops,tests/bench,docs/ops,kernels}
  local files="src/ops/sample.h src/ops/sample.cpp src/ops/sample_ref.cpp tests/ops/sample_test.cpp
    tests/bench/sample_bench.cpp docs/ops/sample.md kernels/sample.h kernels/sample_fwd.cu"
  for file in $files; do : > "$tree/$file"; done
  check "$tree" > /dev/null || { echo "a complete op is refused"; failed=1; }
  for file in $files; do
    [[ $file == kernels/sample.h ]] && continue
    rm "$tree/$file"
    [[ $file == src/ops/sample.h ]] && : > "$tree/src/ops/other.h"  # a folder without headers is no tree of ops
    if check "$tree" > /dev/null; then
      echo "$file can be missing unnoticed"
      failed=1
    fi
    rm -f "$tree/src/ops/other.h"
    : > "$tree/$file"
  done
  ((failed == 0)) && echo "check_ops.sh: every missing companion is noticed"
  return $failed
}

case "${1:-}" in
  --root) root=$2 ;;
  --self-test)
    self_test
    exit
    ;;
  '') ;;
  *)
    echo "usage: scripts/check_ops.sh [--root DIR | --self-test]" >&2
    exit 2
    ;;
esac
check "$root"
