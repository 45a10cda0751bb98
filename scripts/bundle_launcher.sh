#!/bin/sh
# bin/osdn of a bundle (docs/install.md): finds LibTorch 2.11, then becomes the program, so that signals and exit codes
# are the program's own. Needs a shell and coreutils, nothing else.
#   LIBTORCH_ROOT    the LibTorch or PyTorch to use: a folder with lib/libtorch_cpu.so in it
# Without it: .deps/torch or torch in the bundle, .deps/torch beside the bundle, the torch package of python3.
set -u

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 3
}

here=$(readlink -f -- "$0") || fail "$0: cannot be resolved"
bundle=${here%/bin/*}
program=$bundle/libexec/osdn
[ -x "$program" ] || fail "$program is not there or not executable: the bundle is incomplete, copy it again"

# The C library is the one thing that cannot come along: "2.36" of "glibc 2.36".
needed=$(cat "$bundle/lib/glibc_needed" 2>/dev/null) || fail "$bundle/lib/glibc_needed is not there: the bundle is incomplete, copy it again"
found=$(getconf GNU_LIBC_VERSION 2>/dev/null) || found="no glibc"
found=${found#glibc }
older() { # a, b: version a is older than b, each MAJOR.MINOR
  [ "${1%%.*}" -lt "${2%%.*}" ] || { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${1#*.}" -lt "${2#*.}" ]; }
}
case $found in
  [0-9]*.[0-9]*) ! older "$found" "$needed" || fail "this machine has glibc $found, the bundle needs $needed or newer (Debian 12, Ubuntu 24.04, RHEL 10): make the bundle on this machine, scripts/bundle.sh" ;;
  *) fail "this machine has $found, the bundle needs glibc $needed or newer; a container image of Debian 12 or Ubuntu 24.04 has it" ;;
esac

has_torch() { [ -n "$1" ] && [ -f "$1/lib/libtorch_cpu.so" ]; }

torch=
if [ -n "${LIBTORCH_ROOT:-}" ]; then
  has_torch "$LIBTORCH_ROOT" || fail "LIBTORCH_ROOT=$LIBTORCH_ROOT: expected LibTorch 2.11 there, but there is no lib/libtorch_cpu.so in it; correct it or unset it"
  torch=$LIBTORCH_ROOT
else
  for candidate in "$bundle/.deps/torch" "$bundle/torch" "${bundle%/*}/.deps/torch"; do
    [ -n "$torch" ] || ! has_torch "$candidate" || torch=$candidate
  done
  if [ -z "$torch" ] && command -v python3 >/dev/null 2>&1; then
    candidate=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null)
    ! has_torch "$candidate" || torch=$candidate
  fi
fi
[ -n "$torch" ] || fail "LibTorch 2.11 not found: LIBTORCH_ROOT is not set, and neither $bundle/.deps/torch, $bundle/torch, ${bundle%/*}/.deps/torch nor python3 has one. Install it (pip install torch==2.11.0), or set LIBTORCH_ROOT to a folder with lib/libtorch_cpu.so in it"
torch=$(readlink -f -- "$torch")

# Another LibTorch would fail at some symbol, or worse, not fail: "2.11.0" of the header, the wheel or the archive.
version=
if [ -f "$torch/include/torch/headeronly/version.h" ]; then
  version=$(sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\).*/\2/p' "$torch/include/torch/headeronly/version.h" | tr '\n' .)
elif [ -f "$torch/version.py" ]; then
  version=$(sed -n "s/^__version__ = '\([^']*\)'.*/\1/p" "$torch/version.py")
elif [ -f "$torch/build-version" ]; then
  version=$(cat "$torch/build-version")
fi
case $version in
  2.11.*) ;;
  *) fail "LibTorch in $torch is version '${version:-unknown}', 2.11 is needed: pip install torch==2.11.0, or set LIBTORCH_ROOT to a LibTorch 2.11" ;;
esac

# LibTorch's libraries, then what they need: the wheels beside it, else the CUDA toolkit.
path=$torch/lib
for directory in "${torch%/*}"/nvidia/*/lib /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/local/cuda-13*/lib64; do
  [ ! -d "$directory" ] || path=$path:$directory
done
LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

# The loader would name only the first thing that it does not find, and not what would bring it.
not_found() { # kind of thing: what the loader says after it
  LD_TRACE_LOADED_OBJECTS=1 "$program" 2>&1 | sed -n "$1" | sort -u | tr '\n' ' '
}
libraries='s/^[[:space:]]*\([^ ]*\) => not found.*/\1/p'
versions='s/.*version [^A-Z]*\([A-Z]*_[0-9.]*\). not found.*/\1/p'
case "$(not_found "$libraries;$versions")" in
  *libstdc++.so* | *libgcc_s.so* | *GLIBCXX_* | *CXXABI_* | *GCC_*) LD_LIBRARY_PATH=$bundle/lib/runtime:$LD_LIBRARY_PATH ;;
esac
missing=$(not_found "$libraries;$versions")
case $missing in
  '') ;;
  *libtorch_cuda.so* | *libc10_cuda.so*)
    fail "LibTorch in $torch is a build for the CPU only, this bundle needs the one with CUDA (it also runs without a GPU): pip install torch==2.11.0 from PyPI, or make a bundle for the CPU, scripts/bundle.sh --cpu" ;;
  *)
    fail "LibTorch in $torch lacks libraries: ${missing% }. They come with pip install torch==2.11.0 (its nvidia-* packages, installed beside it), or with the CUDA toolkit 13.0; put their folder on LD_LIBRARY_PATH if they are elsewhere" ;;
esac
exec "$program" "$@"
