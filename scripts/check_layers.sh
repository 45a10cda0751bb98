#!/usr/bin/env bash
# Holds the table of layers (docs/architecture.md) against the sources: who may include whom, where third-party headers
# may appear, and the rules on file size, #pragma once, #ifdef and test tags. Prints path:line: what is wrong; exit code 1
# if anything is.
#   scripts/check_layers.sh                 this repository
#   scripts/check_layers.sh --root DIR      another tree
#   scripts/check_layers.sh --self-test     plants one violation of every rule and fails unless each is caught
set -euo pipefail
script=$(readlink -f "${BASH_SOURCE[0]}")
root=$(dirname "$(dirname "$script")")

# Layer, then the layers whose headers it may include beside its own.
layers='
base
kernels     base
tensor      base
config      base
ops         base tensor kernels
model       base tensor config ops
optim       base tensor config kernels ops
dist        base tensor config
data        base config
metrics     base
checkpoint  base tensor config dist
eval        base tensor config data model metrics
train       base tensor config ops model optim dist data metrics checkpoint eval
apps        base kernels tensor config ops model optim dist data metrics checkpoint eval train
'

# Third-party headers, by the regular expression of what stands between the brackets, then the layers that hide them.
# A layer hides them in its .cpp and detail/ files; "open" means that its public headers may name them too.
third_party='
^torch/csrc/distributed/    dist
^(torch|ATen|c10)/          tensor open
^(cuda|cublas|nccl|cuda_[a-z0-9_]*)\.h$|^cuda_runtime  base kernels tensor open
^yaml-cpp/                  config
^(hdf5|H5[A-Za-z]*)\.h$     data
^sentencepiece              data
^(zlib|zstd)\.h$            data
^(arrow|parquet)/           data
^spdlog/                    base
^xxhash\.h$                 base
^nlohmann/                  base checkpoint open
^google/protobuf/           metrics
^CLI/                       apps
'

check_tree() {  # root
  (
    cd "$1"
    find src kernels tests \( -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' \) -print 2>/dev/null | LC_ALL=C sort |
      LAYERS=$layers THIRD_PARTY=$third_party awk '
        function problem(file, line, text) { printf "%s:%d: %s\n", file, line, text; problems++ }
        BEGIN {
          n = split(ENVIRON["LAYERS"], rows, "\n")
          for (i = 1; i <= n; i++) {
            m = split(rows[i], words, " ")
            if (m == 0) continue
            known[words[1]] = 1
            may[words[1], words[1]] = 1
            sees[words[1]] = ""
            for (j = 2; j <= m; j++) { may[words[1], words[j]] = 1; sees[words[1]] = sees[words[1]] " " words[j] }
          }
          n = split(ENVIRON["THIRD_PARTY"], rows, "\n")
          for (i = 1; i <= n; i++) {
            m = split(rows[i], words, " ")
            if (m == 0) continue
            pattern[++patterns] = words[1]
            for (j = 2; j <= m; j++) {
              if (words[j] == "open") open[patterns] = 1
              else { home[patterns, words[j]] = 1; homes[patterns] = homes[patterns] " " words[j] }
            }
          }
        }
        {
          file = $0
          count = split(file, parts, "/")
          layer = parts[1] == "src" ? parts[2] : parts[1]
          in_tests = parts[1] == "tests"
          if (in_tests && parts[2] == "emulation") layer = "kernels"  # stands in for their instructions
          if (in_tests && parts[2] == "gpu_on_cpu") layer = "tensor"  # stands in for files of it
          in_detail = file ~ /\/detail\//
          is_header = file ~ /\.(h|cuh)$/
          if (!in_tests && !(layer in known)) problem(file, 1, "folder \"" layer "\" is no layer of the table in scripts/check_layers.sh")
          lines = 0; pragma = 0; open_case = 0
          tag = ""
          if (file ~ /_test\.cpp$/) { tag = parts[count]; sub(/_test\.cpp$/, "", tag); tag = "[" tag "]" }
          while ((getline text < file) > 0) {
            lines++
            # CTest runs a file by its tag: a case without it would never run.
            if (tag != "" && text ~ /^TEST_CASE\(/) { open_case = lines; declaration = "" }
            if (open_case) {
              declaration = declaration text
              if (text ~ /\{[ \t]*$/ || text ~ /\{.*\}/) {
                if (index(declaration, tag) == 0) problem(file, open_case, "test case without the tag " tag ", so CTest never runs it")
                open_case = 0
              }
            }
            if (text ~ /^#pragma once/) pragma = 1
            if (text ~ /^[ \t]*#[ \t]*(ifdef|ifndef|if[ \t]+!?[ \t]*defined|if[ \t]+OSDN_)/ && !in_tests && layer != "base" && file !~ /^kernels\/common\//)
              problem(file, lines, "conditional compilation outside src/base and kernels/common: write a second .cpp behind the same header (_cuda.cpp, _nocuda.cpp)")
            if (text !~ /^[ \t]*#[ \t]*include[ \t]/) continue
            if (match(text, /"[^"]*"/)) {
              name = substr(text, RSTART + 1, RLENGTH - 2)
              split(name, path, "/")
              target = path[1]
              if (index(name, "/") == 0 || name ~ /^\.\.?\//) { problem(file, lines, "\"" name "\": write includes from the root of the layers, as \"layer/file.h\""); continue }
              if (in_tests) continue
              if (target == "tests") problem(file, lines, "the program may not include \"" name "\"")
              else if (!(target in known)) problem(file, lines, "\"" name "\": \"" target "\" is no layer")
              else if (!((layer, target) in may))
                problem(file, lines, layer " may not include " target " (it sees:" (sees[layer] == "" ? " nothing" : sees[layer]) ")")
              else if (target != layer && name ~ /\/detail\//) problem(file, lines, "\"" name "\" is a detail of " target "; use its public headers")
              else if (target != layer && name ~ /^kernels\/common\//) problem(file, lines, "\"" name "\" is for kernels alone; include the launch contract")
            } else if (match(text, /<[^>]*>/)) {
              name = substr(text, RSTART + 1, RLENGTH - 2)
              for (i = 1; i <= patterns; i++) {
                if (name !~ pattern[i]) continue
                # Tests may look behind a front door, but LibTorch reaches them through one header as well.
                if (in_tests && !open[i]) break
                if (!((i, layer) in home)) problem(file, lines, "<" name "> belongs behind the headers of:" homes[i] (i == 2 ? " (include \"tensor/torch.h\" or \"tensor/fwd.h\")" : ""))
                else if (is_header && !in_detail && !open[i]) problem(file, lines, "<" name "> in a public header of " layer "; only its .cpp files and detail/ may name it")
                break
              }
            }
          }
          close(file)
          limit = parts[1] == "kernels" ? 700 : 500
          if (lines > limit) problem(file, lines, "has " lines " lines, the limit is " limit ": split it")
          if (is_header && !pragma) problem(file, 1, "header without #pragma once")
        }
        END { exit problems > 0 }
      '
  )
}

plant() {  # file, content lines...
  mkdir -p "$tree/$(dirname "$1")"
  printf '%s\n' "${@:2}" >"$tree/$1"
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  local failures=0

  clean_tree() {
    rm -rf "${tree:?}"/*
    plant src/base/error.h '#pragma once' '#include <string>'
    plant src/tensor/torch.h '#pragma once' '#include <ATen/ATen.h>'
    plant src/ops/linear.h '#pragma once' '#include "tensor/fwd.h"'
    plant src/ops/linear.cpp '#include "ops/linear.h"' '#include "kernels/linear.h"' '#include "ops/detail/x.h"'
    plant src/config/yaml.cpp '#include <yaml-cpp/yaml.h>'
    plant kernels/common/math.cuh '#pragma once' '#ifdef __CUDA_ARCH__' '#endif'
    plant tests/ops/linear_test.cpp '#include "tests/support/test.h"' '#include "ops/linear.h"' \
      'TEST_CASE("a claim",' '          "[linear][cuda]") {' '}'
  }
  expect() {  # path:line, part of the message, file, content lines...
    local place=$1 message=$2 output
    shift 2
    clean_tree
    plant "$@"
    output=$(check_tree "$tree" || true)
    if ! grep -qF "$place: " <<<"$output" || ! grep -qF "$message" <<<"$output"; then
      echo "self-test: not caught: expected '$place: ... $message', got: ${output:-nothing}"
      failures=$((failures + 1))
    fi
  }

  clean_tree
  if ! check_tree "$tree"; then
    echo "self-test: a clean tree was refused (above)"
    failures=$((failures + 1))
  fi
  expect src/base/log.cpp:2 'base may not include tensor' src/base/log.cpp '// x' '#include "tensor/fwd.h"'
  expect src/ops/a.cpp:1 'ops may not include model' src/ops/a.cpp '#include "model/lm.h"'
  expect src/data/a.cpp:1 'data may not include tensor' src/data/a.cpp '#  include "tensor/torch.h"'
  expect src/model/a.cpp:1 'is a detail of ops' src/model/a.cpp '#include "ops/detail/x.h"'
  expect src/ops/a.cpp:1 'is for kernels alone' src/ops/a.cpp '#include "kernels/common/math.cuh"'
  expect src/ops/a.cpp:1 'from the root of the layers' src/ops/a.cpp '#include "linear.h"'
  expect src/ops/a.cpp:1 'from the root of the layers' src/ops/a.cpp '#include "../ops/linear.h"'
  expect src/ops/a.cpp:1 'may not include "tests/' src/ops/a.cpp '#include "tests/support/test.h"'
  expect src/extra/a.cpp:1 'is no layer of the table' src/extra/a.cpp '// x'
  expect src/ops/a.cpp:1 '<ATen/ATen.h> belongs' src/ops/a.cpp '#include <ATen/ATen.h>'
  expect kernels/a.cu:1 '<c10/util/Half.h> belongs' kernels/a.cu '#include <c10/util/Half.h>'
  expect tests/ops/a_test.cpp:1 '<torch/types.h> belongs' tests/ops/a_test.cpp '#include <torch/types.h>'
  expect src/train/a.cpp:1 'belongs behind the headers of: dist' src/train/a.cpp '#include <torch/csrc/distributed/c10d/Store.hpp>'
  expect src/train/a.cpp:1 '<yaml-cpp/yaml.h> belongs' src/train/a.cpp '#include <yaml-cpp/yaml.h>'
  expect src/config/yaml.h:2 'in a public header of config' src/config/yaml.h '#pragma once' '#include <yaml-cpp/yaml.h>'
  expect src/eval/a.cpp:1 '<hdf5.h> belongs' src/eval/a.cpp '#include <hdf5.h>'
  expect src/model/a.cpp:1 '<sentencepiece_processor.h> belongs' src/model/a.cpp '#include <sentencepiece_processor.h>'
  expect src/train/a.cpp:1 '<zstd.h> belongs' src/train/a.cpp '#include <zstd.h>'
  expect src/train/a.cpp:1 '<parquet/schema.h> belongs' src/train/a.cpp '#include <parquet/schema.h>'
  expect src/train/a.cpp:1 '<spdlog/spdlog.h> belongs' src/train/a.cpp '#include <spdlog/spdlog.h>'
  expect src/train/a.cpp:1 '<CLI/CLI.hpp> belongs' src/train/a.cpp '#include <CLI/CLI.hpp>'
  expect src/ops/a.cpp:1 'conditional compilation' src/ops/a.cpp '#ifdef OSDN_HAS_CUDA' '#endif'
  expect src/ops/a.h:1 'without #pragma once' src/ops/a.h '#include <string>'
  expect tests/ops/a_test.cpp:1 'without the tag [a]' tests/ops/a_test.cpp 'TEST_CASE("a claim", "[b]") {' '}'
  expect tests/ops/a_test.cpp:2 'without the tag [a]' tests/ops/a_test.cpp '' 'TEST_CASE("a claim",' '          "[b][slow]") {' '}'
  # shellcheck disable=SC2046  # one word a line is wanted
  expect src/ops/a.cpp:501 'the limit is 500' src/ops/a.cpp $(yes ';' | head -501)
  # shellcheck disable=SC2046
  expect kernels/a.cu:701 'the limit is 700' kernels/a.cu $(yes ';' | head -701)
  [ "$failures" = 0 ] || exit 1
  echo "check_layers self-test: every planted violation was caught"
}

case ${1:-} in
  --self-test) self_test ;;
  --root | '')
    [ "${1:-}" = '' ] || root=$2
    check_tree "$root" || { echo "check_layers: the lines above break the rules of layers" >&2; exit 1; }
    ;;
  *) echo "error: scripts/check_layers.sh: unknown argument '$1' (--root DIR, --self-test)" >&2; exit 2 ;;
esac
