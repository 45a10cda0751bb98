#!/usr/bin/env bash
# Installs what building and running osdn needs, and nothing that is already there: distribution packages through apt,
# LibTorch 2.11.0 from its wheel into .deps/ unless one is found. Debian 12 and Ubuntu 24.04; safe to run again.
#   scripts/setup.sh            what building and running needs
#   scripts/setup.sh --test     also what the tests need (clang for the dev preset, clang-tidy, clang-format 14, Catch2)
#   scripts/setup.sh --check    installs nothing: says what is missing, exit code 3 if anything is
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

with_tests=no
check_only=no
for argument in "$@"; do
  case $argument in
    --test) with_tests=yes ;;
    --check) check_only=yes ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail 2 "scripts/setup.sh: unknown argument '$argument' (--test, --check)" ;;
  esac
done
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail 3 "osdn builds on Linux x86-64; this is $(uname -s) $(uname -m)"

torch_version=2.11.0
arrow_version=26.0.1

# --- Distribution packages: package, then what shows that it is there (a command, or a file below an include or data
# directory), so that tools installed in another way count too.
packages_to_build="
  g++                   command g++
  cmake                 command cmake
  ninja-build           command ninja
  git                   command git
  libyaml-cpp-dev       file yaml-cpp/yaml.h
  libfmt-dev            file fmt/format.h
  libspdlog-dev         file spdlog/spdlog.h
  libsentencepiece-dev  file sentencepiece_trainer.h
  libhdf5-dev           file hdf5/serial/hdf5.h
  libgloo-dev           file gloo/context.h
  libxxhash-dev         file xxhash.h
  zlib1g-dev            file zlib.h
  libzstd-dev           file zstd.h
  nlohmann-json3-dev    file nlohmann/json.hpp
  libcli11-dev          file CLI/CLI.hpp
  libjs-chart.js        file javascript/chart.js
"
packages_to_test="
  catch2                file catch2
  clang                 command clang++
  libclang-rt-dev       fuzzer -
  lld                   command ld.lld
  clang-tidy            command clang-tidy
  clang-format-14       command clang-format-14
  slurm-wlm             command slurmctld
  munge                 command munged
  openmpi-bin           command mpirun
  iproute2              command ip
"
packages_to_fetch_libtorch="
  python3               command python3
  python3-pip           pip -
  ca-certificates       file ca-certificates
"

# A python3 that has pip: the first of PATH, or the distribution's.
python_with_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    if command -v "$python" >/dev/null && "$python" -m pip --version >/dev/null 2>&1; then
      echo "$python"
      return 0
    fi
  done
  return 1
}

is_there() {  # kind, what
  case $1 in
    command) command -v "$2" >/dev/null ;;
    pip) python_with_pip >/dev/null ;;
    fuzzer) compgen -G "$(clang++ -print-resource-dir 2>/dev/null)/lib/*/libclang_rt.fuzzer*.a" >/dev/null ;;
    file)
      local directory
      for directory in /usr/include /usr/local/include /usr/share; do
        [ ! -e "$directory/$2" ] || return 0
      done
      return 1
      ;;
  esac
}

missing_packages() {  # table
  local package kind what
  while read -r package kind what; do
    [ -z "$package" ] || is_there "$kind" "$what" || printf '%s\n' "$package"
  done <<<"$1"
}

# --- LibTorch: the first of $LIBTORCH_ROOT, .deps/torch, python3's torch that has the right version.
libtorch_version() {  # directory; prints nothing unless libraries and headers are there
  [ -f "$1/lib/libtorch_cpu.so" ] && [ -f "$1/include/ATen/ATen.h" ] || return 0
  awk '/define TORCH_VERSION_(MAJOR|MINOR|PATCH) / { printf "%s%s", separator, $3; separator = "." }' \
    "$1/include/torch/headeronly/version.h" 2>/dev/null || true
}

# The wheel's list of contents, moved in last, marks a finished unpacking; the libraries must have their full size.
unpacked_whole() {
  local record=.deps/torch-$torch_version.dist-info/RECORD path size
  [ -f "$record" ] || return 1
  while IFS=, read -r path _ size; do
    [ "$(stat -c %s ".deps/$path" 2>/dev/null)" = "$size" ] || return 1
  done < <(grep -E '^torch/lib/[^/]*\.so' "$record" | tr -d '\r')
}

find_libtorch() {
  local found
  if [ -n "${LIBTORCH_ROOT:-}" ]; then
    found=$(libtorch_version "$LIBTORCH_ROOT")
    [[ $found == 2.11.* ]] ||
      fail 2 "LIBTORCH_ROOT=$LIBTORCH_ROOT: expected LibTorch 2.11 (include/ and lib/), found ${found:-none}; unset it or correct it"
    echo "$LIBTORCH_ROOT"
    return
  fi
  if [[ $(libtorch_version .deps/torch) == 2.11.* ]] && unpacked_whole; then
    echo .deps/torch
    return
  fi
  if command -v python3 >/dev/null; then
    local of_python
    of_python=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null || true)
    if [ -n "$of_python" ] && [[ $(libtorch_version "$of_python") == 2.11.* ]]; then
      echo "$of_python"
    fi
  fi
}

toolkit_libraries() {  # colon-separated library directories of the CUDA toolkit; empty without nvcc
  local nvcc root directory joined=
  nvcc=$(command -v nvcc || true)
  [ -n "$nvcc" ] || { [ ! -x /usr/local/cuda/bin/nvcc ] || nvcc=/usr/local/cuda/bin/nvcc; }
  [ -n "$nvcc" ] || return 0
  root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  for directory in "$root/lib64" "$root/targets/x86_64-linux/lib"; do
    [ ! -d "$directory" ] || joined=$joined${joined:+:}$directory
  done
  echo "$joined"
}

# LibTorch's own shared libraries that the loader cannot find, as wheels that bring them (the versions that torch
# 2.11.0 asks for). libtorch_cuda.so counts only where a CUDA toolkit is, and may find them there; libtorch_cpu.so must
# find its own beside it, since a build without CUDA (the asan and tidy presets) knows no toolkit.
missing_wheels() {  # LibTorch directory
  local toolkit name
  toolkit=$(toolkit_libraries)
  {
    ldd "$1/lib/libtorch_cpu.so" 2>/dev/null
    [ -z "$toolkit" ] || LD_LIBRARY_PATH=$toolkit${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ldd "$1/lib/libtorch_cuda.so" 2>/dev/null
  } |
    awk '/not found/ { print $1 }' | sort -u |
    while read -r name; do
      case $name in
        libcuda.so.*) ;;  # the driver's, and absent where there is no GPU
        libcudart.so.*) echo nvidia-cuda-runtime==13.0.96 ;;
        libcupti.so.*) echo nvidia-cuda-cupti==13.0.85 ;;
        libcufile.so.*) echo nvidia-cufile==1.15.1.6 ;;
        libcusparseLt.so.*) echo nvidia-cusparselt-cu13==0.8.0 ;;
        libnvshmem_host.so.*) echo nvidia-nvshmem-cu13==3.4.5 ;;
        libcudnn*) echo nvidia-cudnn-cu13==9.19.0.56 ;;
        libnccl.so.*) echo nvidia-nccl-cu13==2.28.9 ;;
        libcublas*) echo nvidia-cublas==13.1.0.3 ;;
        libcufft.so.*) echo nvidia-cufft==12.0.0.61 ;;
        libcurand.so.*) echo nvidia-curand==10.4.0.35 ;;
        libcusolver*) echo nvidia-cusolver==12.0.4.66 ;;
        libcusparse.so.*) echo nvidia-cusparse==12.6.3.3 ;;
        libnvJitLink.so.*) echo nvidia-nvjitlink==13.0.88 ;;
        libnvrtc*) echo nvidia-cuda-nvrtc==13.0.88 ;;
        *) echo "unknown:$name" ;;
      esac
    done | sort -u
}

# Unpacks a wheel beside the others in .deps/: into a temporary directory first, its dist-info directory last, so that
# an interrupted unpacking never looks finished.
fetch_wheel() {  # python, requirement
  local python=$1 requirement=$2 stage entry
  stage=$(mktemp -d .deps/.unpack.XXXXXX)
  local wheel
  wheel=$(find .deps/wheels -name "$(tr - _ <<<"${requirement%%==*}")-${requirement##*==}-*.whl" 2>/dev/null | head -1)
  if [ -z "$wheel" ]; then
    local platforms=() tag
    for tag in manylinux_2_28 manylinux_2_27 manylinux_2_25 manylinux_2_17 manylinux2014; do
      platforms+=(--platform "${tag}_x86_64")
    done
    run "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
      --abi cp311 --abi none "${platforms[@]}" --dest "$stage/wheel" "$requirement" >&2 ||
      { rm -rf "$stage"; return 1; }
    wheel=$(find "$stage/wheel" -name '*.whl')
  fi
  # Of LibTorch and Arrow only what a C++ program uses: libraries, headers, licence. zipfile checks every CRC.
  "$python" - "$wheel" "$stage/content" <<'PYTHON'
import os, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        top = name.split('/')[0]
        if top == 'nvidia' or top.endswith('.dist-info') or name.startswith(('torch/lib/', 'torch/include/', 'pyarrow/include/')):
            wheel.extract(name, sys.argv[2])
        # Of Arrow what reading Parquet needs; pyarrow keeps its libraries beside its modules.
        if name.startswith(('pyarrow/libarrow.so.', 'pyarrow/libparquet.so.')):
            path = wheel.extract(name, sys.argv[2])
            lib = os.path.join(os.path.dirname(path), 'lib')
            os.makedirs(lib, exist_ok=True)
            os.rename(path, os.path.join(lib, os.path.basename(path)))
PYTHON
  for entry in "$stage"/content/torch; do
    [ ! -e "$entry" ] || { rm -rf .deps/torch && mv "$entry" .deps/torch; }
  done
  if [ -d "$stage/content/pyarrow" ]; then
    rm -rf .deps/arrow
    mv "$stage/content/pyarrow" .deps/arrow
  fi
  [ ! -d "$stage/content/nvidia" ] || cp -a --link --force "$stage/content/nvidia" .deps/
  for entry in "$stage"/content/*.dist-info; do
    rm -rf ".deps/$(basename "$entry")"
    mv "$entry" .deps/
  done
  rm -rf "$stage"
}

# --- Arrow C++, with which Parquet files are read; everything else works without it.
arrow_is_there() {
  { [ -f ".deps/pyarrow-$arrow_version.dist-info/RECORD" ] && [ -d .deps/arrow/include ]; } || [ -n "${ARROW_ROOT:-}" ] ||
    { command -v python3 >/dev/null && [ -n "$(python3 -c 'import importlib.util as u; print(u.find_spec("pyarrow") or "")' 2>/dev/null)" ]; }
}

# --- What is missing?
libtorch=$(find_libtorch)
table=$packages_to_build
[ "$with_tests" = no ] || table+=$packages_to_test
if [ -z "$libtorch" ] || [ -n "$(missing_wheels "$libtorch")" ]; then
  table+=$packages_to_fetch_libtorch
fi
mapfile -t packages < <(missing_packages "$table")

if [ "$check_only" = yes ]; then
  [ ${#packages[@]} -eq 0 ] || say "missing packages: ${packages[*]}"
  [ -n "$libtorch" ] || say "missing: LibTorch $torch_version"
  wheels=$([ -z "$libtorch" ] || missing_wheels "$libtorch")
  [ -z "$wheels" ] || say "missing libraries of LibTorch:" $wheels
  [ ${#packages[@]} -eq 0 ] && [ -n "$libtorch" ] && [ -z "$wheels" ] || exit 3
  arrow_is_there || say "not there, and needed for .parquet files alone: Arrow $arrow_version"
  say "setup: nothing is missing (LibTorch in $libtorch)"
  exit 0
fi

# --- Distribution packages.
if [ ${#packages[@]} -gt 0 ]; then
  command -v apt-get >/dev/null ||
    fail 3 "this machine has no apt-get; install the equivalents of: ${packages[*]}"
  if [ "$(id -u)" != 0 ]; then
    say "These packages are missing. Install them with this command, then run this script again:"
    say ""
    say "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${packages[*]}"
    say ""
    exit 3
  fi
  say "setup: will install these packages: ${packages[*]}"
  run apt-get update -qq >&2 || say "warning: apt-get update failed; using the package lists that are there"
  DEBIAN_FRONTEND=noninteractive run apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2 ||
    fail 3 "apt-get could not install: ${packages[*]} (no network? see its message above)"
  mapfile -t packages < <(missing_packages "$table")
  [ ${#packages[@]} -eq 0 ] || fail 3 "still missing after the installation: ${packages[*]}"
fi

# --- LibTorch and the libraries that it needs beside it.
fetch() {  # requirement
  local python
  python=$(python_with_pip) || fail 3 "python3 with pip is needed to fetch $1 (apt-get install python3-pip)"
  fetch_wheel "$python" "$1" ||
    fail 3 "could not fetch $1. Without a network: put its wheel (Linux x86-64; LibTorch's for CPython 3.11) into .deps/wheels/, or set LIBTORCH_ROOT to a LibTorch $torch_version"
}

if [ -z "$libtorch" ] || [ -n "$(missing_wheels "$libtorch")" ]; then
  mkdir -p .deps
  exec 9>.deps/.lock
  flock 9
  rm -rf .deps/.unpack.*
  libtorch=$(find_libtorch)
  if [ -z "$libtorch" ]; then
    say "setup: will fetch LibTorch $torch_version (530 MB) and unpack it into .deps/ (1.1 GB)"
    free_kb=$(df -Pk .deps | awk 'NR == 2 { print $4 }')
    [ "$free_kb" -ge 2500000 ] || fail 3 "unpacking LibTorch needs 2.5 GB in $PWD/.deps; $((free_kb / 1000)) MB are free"
    fetch "torch==$torch_version"
    libtorch=$(find_libtorch)
    [ -n "$libtorch" ] || fail 3 "LibTorch was unpacked but is not whole in .deps/torch; remove .deps and run this script again"
  fi
  # A fetched library may itself need another: until the loader finds them all.
  for _ in 1 2 3 4; do
    wheels=$(missing_wheels "$libtorch")
    [ -n "$wheels" ] || break
    for wheel in $wheels; do
      [[ $wheel != unknown:* ]] || fail 3 "$libtorch needs ${wheel#unknown:}, which this script does not know; install it or put its directory on LD_LIBRARY_PATH"
      [ "$libtorch" = .deps/torch ] ||
        fail 3 "$libtorch needs the library of ${wheel%%==*}; install it beside (pip install $wheel), or unset LIBTORCH_ROOT and run this script again"
      say "setup: will fetch $wheel into .deps/"
      fetch "$wheel"
    done
  done
  [ -z "$(missing_wheels "$libtorch")" ] || fail 3 "libraries of $libtorch are still missing: $(missing_wheels "$libtorch" | tr '\n' ' ')"
fi

if ! arrow_is_there; then
  mkdir -p .deps
  exec 9>.deps/.lock
  flock 9
  say "setup: will fetch Arrow $arrow_version (55 MB) and unpack it into .deps/arrow (70 MB), to read Parquet files"
  { python=$(python_with_pip) && fetch_wheel "$python" "pyarrow==$arrow_version"; } ||
    say "warning: could not fetch pyarrow==$arrow_version, so .parquet files cannot be read. Without a network: put its wheel (Linux x86-64, CPython 3.11) into .deps/wheels/ and run this script again"
fi

cmake_version=$(cmake --version | awk 'NR == 1 { print $3 }')
[ "$(printf '3.25\n%s\n' "$cmake_version" | sort -V | head -1)" = 3.25 ] ||
  fail 3 "CMake 3.25 or newer is needed; $(command -v cmake) is $cmake_version"
if [ -z "$(toolkit_libraries)" ] && command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  say "setup: there is a GPU but no nvcc, so the build will be for the CPU only; install the CUDA toolkit 13.0 to use the GPU"
fi
say "setup: ready (LibTorch in $libtorch, $(g++ --version | head -1), CMake $cmake_version$([ -z "$(toolkit_libraries)" ] || echo ', CUDA toolkit'))"
