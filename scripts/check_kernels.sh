#!/usr/bin/env bash
# Reads the assembler's report of every kernel for the architectures that ship: registers, spills, shared memory.
# Fails when a kernel spills (but for the list below, whose figures may only shrink), when one that has to run everywhere
# needs more than 99 KB of static shared memory, or when wgmma instructions were serialised.
#   scripts/check_kernels.sh [FILE...]     compiles these, all kernels/*.cu without arguments; exit code 1 when something is wrong
#   scripts/check_kernels.sh --built BUILD reads the reports that the build in this folder kept beside its objects
#   scripts/check_kernels.sh --self-test   a report with every fault must be refused
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Spilled bytes that are known: part of the kernel's name, architecture, bytes (stores) of its largest instantiation.
known_spills='
precond_scan_forward_kernel sm_80 24
precond_scan_forward_kernel sm_90a 12
delta_rule_channel_gradients_kernel sm_90a 92
delta_rule_channel_gradients_kernel<128, 64, WarpgroupGradients sm_90a 8
delta_rule_channel_gradients_kernel<128, 128, WarpgroupGradients sm_90a 0
delta_rule_channel_strong_gradients_kernel sm_90a 88
delta_rule_channel_strong_gradients_kernel sm_80 112
delta_rule_channel_strong_gradients_kernel<128, __nv_bfloat16 sm_80 116
delta_rule_backward_gradients_kernel sm_80 312
delta_rule_backward_gradients_kernel sm_90a 340
delta_rule_backward_scan_kernel sm_80 52
delta_rule_backward_scan_kernel sm_90a 52
delta_rule_forward_kernel<128 sm_80 8
delta_rule_forward_kernel<256 sm_80 220
delta_rule_forward_kernel<256 sm_90a 252
delta_rule_backward_scan_kernel<256 sm_80 76
delta_rule_backward_scan_kernel<256 sm_90a 176
delta_rule_backward_scan_kernel<256, 8, 2 sm_80 80
delta_rule_backward_scan_kernel<256, 8, 2 sm_90a 296
cross_entropy_kernel sm_80 16
cross_entropy_kernel sm_90a 16
rms_norm_detail::backward_kernel sm_80 464
rms_norm_detail::backward_kernel sm_90a 436
rms_norm_detail::forward_kernel sm_80 4
rms_norm_detail::forward_kernel sm_90a 12
'
portable_shared_bytes=101376

# Reads ptxas' report on stdin; prints "kernel|arch|registers|spill bytes|static shared bytes" and the faults on stderr.
read_report() {
  c++filt | KNOWN=$known_spills LIMIT=$portable_shared_bytes awk '
    BEGIN {
      n = split(ENVIRON["KNOWN"], lines, "\n")
      for (i = 1; i <= n; i++) {
        words = split(lines[i], word, " ")
        kernel = lines[i]
        if (sub(/ [^ ]+ [0-9]+$/, "", kernel)) known[kernel, word[words - 1]] = word[words]
      }
    }
    function fault(text) { print "check_kernels: " text > "/dev/stderr"; faults++ }
    /serialized|serialised|setmaxnreg.*ignored/ { fault($0) }
    /Compiling entry function/ {
      arch = $0; sub(/.* for ./, "", arch); sub(/.$/, "", arch)
      name = $0; sub(/.*entry function ./, "", name); sub(/. for .sm_[0-9a-z]*.$/, "", name)
      gsub(/osdn::kernels::/, "", name)
      gsub(/\(anonymous namespace\)::|^void |\((Decay|bool|int)\)/, "", name)
      sub(/\(.*/, "", name)
    }
    /bytes spill stores/ { spill = $0; sub(/ bytes spill stores.*/, "", spill); sub(/.* /, "", spill) }
    /Used [0-9]+ registers/ {
      registers = $0; sub(/.*Used /, "", registers); sub(/ registers.*/, "", registers)
      shared = 0
      if ($0 ~ / bytes smem/) { shared = $0; sub(/ bytes smem.*/, "", shared); sub(/.* /, "", shared) }
      printf "%s|%s|%s|%s|%s\n", name, arch, registers, spill, shared
      allowed = 0; named = 0  # the longest name that fits counts
      for (key in known) {
        split(key, part, SUBSEP)
        if (index(name, part[1]) && part[2] == arch && length(part[1]) > named) { allowed = known[key]; named = length(part[1]) }
      }
      if (spill + 0 > allowed + 0) fault(name " for " arch ": " spill " bytes spilled, " allowed " allowed")
      if (arch == "sm_80" && shared + 0 > ENVIRON["LIMIT"] + 0) fault(name ": " shared " bytes of shared memory, portable kernels have " ENVIRON["LIMIT"])
      kernels++
    }
    END {
      if (kernels == 0) fault("the report names no kernel")
      exit faults > 0
    }
  '
}

compile() {  # file
  "$nvcc" -std=c++20 -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a -Xptxas -v \
    --expt-relaxed-constexpr -lineinfo -DOSDN_HAS_CUDA=1 -DFMT_HEADER_ONLY=1 -I. -Isrc -c "$1" -o /dev/null 2>&1
}

self_test() {
  local good bad failed=0
  good="ptxas info    : Compiling entry function '_ZN4osdn7kernels12fine_kernelEv' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 57 registers, used 1 barriers, 6240 bytes smem, 528 bytes cmem[0]"
  read_report <<<"$good" >/dev/null || { say "a clean report was refused"; failed=1; }
  for bad in "${good/0 bytes spill stores/8 bytes spill stores}" "${good/6240 bytes smem/102400 bytes smem}" \
    "$good
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized" ''; do
    if read_report <<<"$bad" >/dev/null 2>&1; then
      say "not noticed: $bad"
      failed=1
    fi
  done
  [ "$failed" = 0 ] || exit 1
  say "check_kernels: every planted fault was noticed"
}

if [ "${1:-}" = --self-test ]; then
  self_test
  exit
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ "${1:-}" = --built ]; then
  [ $# = 2 ] || fail 2 "scripts/check_kernels.sh --built: expected BUILD"
  for file in kernels/*.cu; do
    report=$2/kernels/CMakeFiles/osdn_kernels.dir/$(basename "$file").o.report
    [ -f "$report" ] || fail 1 "check_kernels: $report is missing: build osdn_kernels there first"
    cp "$report" "$folder/$(basename "$file").log"
  done
else
  nvcc=$(command -v nvcc || true)
  [ -n "$nvcc" ] || nvcc=/usr/local/cuda/bin/nvcc
  [ -x "$nvcc" ] || fail 3 "check_kernels: no nvcc on PATH and none in /usr/local/cuda/bin"
  files=("$@")
  [ $# -gt 0 ] || files=(kernels/*.cu)
  export -f compile
  export nvcc folder
  printf '%s\n' "${files[@]}" | xargs -P "$(build_jobs)" -I{} bash -c 'compile {} > "$folder/$(basename {}).log" || touch "$folder/failed"'
  if [ -e "$folder/failed" ]; then
    grep -h error "$folder"/*.log >&2 || cat "$folder"/*.log >&2
    fail 1 "check_kernels: a kernel does not compile"
  fi
fi
code=0
cat "$folder"/*.log | read_report >"$folder/table" || code=1
{
  echo "kernel|architecture|registers|spilled bytes|static shared bytes"
  sort "$folder/table"
} | column -t -s '|'
exit "$code"
