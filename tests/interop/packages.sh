#!/usr/bin/env bash
# Makes Python packages available to the interop tests without touching the machine's own: installs them once below
# build/interop and prints the PYTHONPATH to use.
#   tests/interop/packages.sh safetensors==0.8.0 ...
# Exit code 77, with the reason on stderr, where there is no python3, no pip or no way to the package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=${OSDN_INTEROP_DIR:-$PWD/build/interop}
name=$(printf '%s+' "$@")
target=$root/${name%+}

cannot() {
  echo "interop test could not run: $1" >&2
  exit 77
}

command -v python3 >/dev/null || cannot "python3 is not installed"
mkdir -p "$root"
exec 9>"$root/lock"
flock 9
if [ ! -d "$target" ]; then
  python3 -m pip --version >/dev/null 2>&1 || cannot "python3 has no pip"
  staged=$root/.staged-$$
  trap 'rm -rf "$staged"' EXIT
  python3 -m pip install --quiet --disable-pip-version-check --target "$staged" --only-binary=:all: "$@" >&2 ||
    cannot "pip could not install $*"
  mv "$staged" "$target"
fi
echo "$target"
