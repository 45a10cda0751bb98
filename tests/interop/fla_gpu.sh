# Sourced by the scripts that compare with flash-linear-attention (fla) on a GPU: sets root, osdn, python and an empty
# working directory, or ends with exit code 77 where there is no GPU or no package.
# Needs python3 (PYTHON: another one) with torch, triton, transformers (5.6 or later), einops and safetensors; fla itself
# is fetched from the package index when it cannot be imported.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
osdn=$(realpath "${1:-$root/build/release/bin/osdn}")
python=${PYTHON:-python3}
cannot() { echo "interop test could not run: $1" >&2; exit 77; }

nvidia-smi >/dev/null 2>&1 || cannot "no GPU"
"$python" -c "import torch, triton, transformers, einops, safetensors" 2>/dev/null || cannot "$python lacks a package"
if ! "$python" -c "import fla" 2>/dev/null; then
  site=$("$root/tests/interop/packages.sh" --no-deps flash-linear-attention==0.6.0 fla-core==0.6.0) || exit 77
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
