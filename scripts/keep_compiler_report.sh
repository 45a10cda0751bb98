#!/usr/bin/env bash
# Runs a compiler of kernels and keeps what the assembler says of them (registers, spills) beside the object, as
# OBJECT.report, for scripts/check_kernels.sh; the rest of its messages go on to stderr.
#   scripts/keep_compiler_report.sh NVCC ARGUMENT...
set -uo pipefail
object=
previous=
for argument in "$@"; do
  [ "$previous" != -o ] || object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2>"$object.report"
code=$?
grep -vE '^ptxas info|^    [0-9]+ bytes stack frame|^$' "$object.report" >&2
exit "$code"
