#!/usr/bin/env bash
# Prints a command line that is torchrun: of an installed PyTorch, of the wheel that lies whole in .deps, or of one
# that is fetched below build/interop. Exit code 77, with the reason on stderr, where none can be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if command -v torchrun >/dev/null; then
  command -v torchrun
  exit 0
fi
command -v python3 >/dev/null || { echo "interop test could not run: python3 is not installed" >&2; exit 77; }
helpers=$(tests/interop/packages.sh typing_extensions==4.15.0 filelock==3.20.0 sympy==1.14.0 networkx==3.6 jinja2==3.1.6 fsspec==2025.10.0)
libraries=$(printf '%s:' "$PWD"/.deps/nvidia/*/lib /usr/local/cuda/lib64)
torchrun_of() {  # directory with torch/ in it
  echo "env PYTHONPATH=$1:$helpers LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:-} python3 -m torch.distributed.run"
}
works() { $(torchrun_of "$1") --help >/dev/null 2>&1; }
if [ -f .deps/torch/distributed/run.py ] && works "$PWD/.deps"; then
  torchrun_of "$PWD/.deps"
  exit 0
fi
site=$(tests/interop/packages.sh --no-deps torch==2.11.0)
works "$site" || { echo "interop test could not run: $site does not start here" >&2; exit 77; }
torchrun_of "$site"
