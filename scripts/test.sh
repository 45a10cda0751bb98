#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests.
#   scripts/test.sh         source checks, the ci build, every test that this machine can run but `slow` and `interop`
#   scripts/test.sh --all   also `slow`, `interop`, the sanitizer builds, and clang-tidy on what changed
# The plain cmake and ctest lines are printed as they run. Environment: OSDN_TIDY_FILES, files that clang-tidy reads at
# most (16; it needs up to 45 seconds each).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

all=no
case ${1:-} in
  '') ;;
  --all) all=yes ;;
  -h | --help) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) fail 2 "scripts/test.sh: unknown argument '$1' (--all)" ;;
esac

summary=$(mktemp)
trap 'rm -f "$summary"' EXIT
failed=()
started=$SECONDS

# Runs one phase; a failure is remembered, and the phases that do not depend on it still run.
phase() {  # name, command...
  local name=$1 begin=$SECONDS verdict=ok
  shift
  say ""
  say "== $name"
  "$@" || verdict=FAILED
  [ "$verdict" = ok ] || failed+=("$name")
  printf '%-28s %-6s %5d s\n' "$name" "$verdict" $((SECONDS - begin)) >>"$summary"
  [ "$verdict" = ok ]
}

finish() {
  say ""
  say "== phases ($((SECONDS - started)) s in all)"
  grep -v '^ctest:' "$summary" >&2 || true
  sed -n 's/^ctest://p' "$summary"
  [ ${#failed[@]} -eq 0 ] || fail 1 "failed: ${failed[*]}"
  exit 0
}

# ctest, keeping its closing lines for the end. Nothing waits for ever: every test has a time-out in tests/CMakeLists.txt.
run_ctest() {  # preset, arguments...
  local preset=$1 log code=0
  shift
  log=$(mktemp)
  run ${ctest_prefix[@]+"${ctest_prefix[@]}"} ctest --test-dir "build/$preset" --output-on-failure "$@" 2>&1 | tee "$log" || code=1
  sed -n -E '/% tests passed/p; /^Total Test time/p' "$log" | sed 's/^/ctest:/' >>"$summary"
  if ! grep -q '% tests passed' "$log"; then
    say "ctest ran no test"
    code=1
  fi
  rm -f "$log"
  return "$code"
}

source_checks() {
  local code=0
  run scripts/format.sh --check || code=1
  run scripts/check_layers.sh || code=1
  run scripts/check_ops.sh || code=1
  return "$code"
}

default_labels() {
  local without='^(slow|interop|cuda)$'
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then without='^(slow|interop)$'; fi
  run_ctest ci --label-exclude "$without"
}

# The thread sanitizer of g++ 12 and 13 does not start where addresses are random over more bits than it expects, as on
# kernels since 6.6; where the system lets us, they are fixed.
tsan_tests() {
  local ctest_prefix=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then ctest_prefix=(setarch "$(uname -m)" -R); fi
  run_ctest tsan --label-regex '^unit$' --exclude-regex '^(scripts|fuzz)'
}

has_label() { [[ $(ctest --test-dir "build/$1" --print-labels 2>/dev/null) == *" $2"* ]]; }

# What is not committed yet, then what the branch has over origin/main; on main itself, what the last commits touched.
changed_sources() {
  {
    git diff --name-only HEAD
    if git rev-parse -q --verify origin/main >/dev/null && [ -n "$(git rev-list -1 origin/main..HEAD)" ]; then
      git log --name-only --pretty=format: origin/main..HEAD
    else
      git log -20 --name-only --pretty=format:
    fi
  } | awk '/^src\/.*\.cpp$/ && !seen[$0]++' | while IFS= read -r file; do
    [ ! -f "$file" ] || printf '%s\n' "$file"
  done
}

tidy() {
  local limit=${OSDN_TIDY_FILES:-16} files
  [ -f build/tidy/build.ninja ] || run cmake --preset tidy >&2 || return 1
  # Only what this preset compiles has flags to read it with (the CUDA variants have none here).
  mapfile -t files < <(changed_sources | while IFS= read -r file; do
    grep -qF "\"$PWD/$file\"" build/tidy/compile_commands.json && printf '%s\n' "$file" || true
  done)
  if [ ${#files[@]} -eq 0 ]; then
    say "no changed source to read"
    return 0
  fi
  [ ${#files[@]} -le "$limit" ] || say "reading the $limit last changed of ${#files[@]} files (OSDN_TIDY_FILES)"
  files=("${files[@]:0:$limit}")
  say "$ clang-tidy -p build/tidy --quiet ${files[*]}"
  printf '%s\0' "${files[@]}" | xargs -0 -P "$(build_jobs)" -n 1 clang-tidy -p build/tidy --quiet 2> >(grep -v 'warnings generated' >&2)
}

phase setup scripts/setup.sh --test || finish
phase 'source checks' source_checks || true
phase 'build ci' configure_and_build ci || finish
phase 'tests' default_labels || true
if [ "$all" = yes ]; then
  if has_label ci slow; then phase 'tests: slow' run_ctest ci --label-regex '^slow$' || true; fi
  if has_label ci interop; then phase 'tests: interop' run_ctest ci --label-regex '^interop$' || true; fi
  if phase 'build asan' configure_and_build asan; then
    phase 'tests: asan' run_ctest asan --label-regex '^unit$' --exclude-regex '^scripts\.' || true
  fi
  if phase 'build tsan' configure_and_build tsan; then phase 'tests: tsan' tsan_tests || true; fi
  phase 'clang-tidy' tidy || true
fi
finish
