# Sourced by the other scripts: messages, printed commands, the number of build jobs. Moves to the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*" >&2; }

fail() {  # exit code, message
  local code=$1
  shift
  printf 'error: %s\n' "$*" >&2
  exit "$code"
}

# Prints a command as it could be typed, then runs it.
run() {
  printf '\n$%s\n' "$(printf ' %q' "$@")" >&2
  "$@"
}

# One compiler of a LibTorch file takes up to 3 GB: as many jobs as cores, fewer where memory is short.
build_jobs() {
  local cores memory_kb by_memory
  cores=$(nproc)
  memory_kb=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null || true)
  by_memory=$((${memory_kb:-4000000} / 3000000))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# Configures once (CMake itself runs again when its files change), then builds the preset.
configure_and_build() {  # preset, targets...
  local preset=$1
  shift
  [ -f "build/$preset/build.ninja" ] || run cmake --preset "$preset"
  run cmake --build "build/$preset" --parallel "$(build_jobs)" ${1:+--target "$@"}
}

# For awk: value(name): a field of the JSON line in $0, without quotes.
awk_value='
  function value(name,    found) {
    if (!match($0, "\"" name "\": (\"[^\"]*\"|[^,}]*)")) return ""
    found = substr($0, RSTART, RLENGTH)
    sub(/^"[^"]*": /, "", found)
    gsub(/"/, "", found)
    return found
  }
'
