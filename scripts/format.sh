#!/usr/bin/env bash
# Formats the sources: clang-format 14 for C++ and CUDA (other versions format differently); no trailing blanks, no tabs
# and one final newline in everything else that is text.
#   scripts/format.sh           rewrites files in place
#   scripts/format.sh --check   changes nothing: names what would change, exit code 1 if anything would
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check=no
case ${1:-} in
  '') ;;
  --check) check=yes ;;
  *) fail 2 "scripts/format.sh: unknown argument '$1' (--check)" ;;
esac

# Git's list where there is a repository (what it ignores is nobody's business), else everything in the folders.
files() {  # name patterns...
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "$@" | sort -u | while IFS= read -r file; do
      [ ! -f "$file" ] || printf '%s\n' "$file"
    done
  else
    local pattern patterns=()
    for pattern in "$@"; do patterns+=(-o -name "$pattern"); done
    find src kernels tests scripts cmake configs docs ./*.* -type f \( "${patterns[@]:1}" \) | sed 's|^\./||' | sort -u
  fi
}

clang_format=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    clang_format=$candidate
    break
  fi
done

bad=0
if [ -z "$clang_format" ]; then
  [ "$check" = yes ] || fail 3 "clang-format 14 is needed (scripts/setup.sh --test installs it)"
  say "warning: no clang-format 14 here: C++ is not checked (scripts/setup.sh --test installs it)"
else
  mapfile -t sources < <(files '*.h' '*.cuh' '*.cpp' '*.cu')
  if [ "$check" = no ]; then
    printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -n 16 "$clang_format" -i
  else
    output=$(printf '%s\0' "${sources[@]}" | xargs -0 "$clang_format" --dry-run --ferror-limit=1 2>&1 |
      grep -E 'warning: code should be clang-formatted|error:' || true)
    if [ -n "$output" ]; then
      sed 's/ warning: code should be.*/ is not formatted: run scripts\/format.sh/' <<<"$output"
      bad=1
    fi
  fi
fi

mapfile -t texts < <(files '*.h' '*.cuh' '*.cpp' '*.cu' '*.md' '*.sh' '*.yaml' '*.yml' '*.cmake' '*.json' '*.txt')
if [ "$check" = no ]; then
  # Only where there is something to change: what is written is compiled again.
  mapfile -t blanks < <(grep -lE '[[:blank:]]+$' -- "${texts[@]}" || true)
  [ ${#blanks[@]} -eq 0 ] || sed -i 's/[ \t]*$//' "${blanks[@]}"
  for file in "${texts[@]}"; do
    # The substitution drops the last newline, so an ending newline shows as nothing.
    [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || echo >>"$file"
  done
fi
tab=$'\t'
found=$(
  grep -nE "[ $tab]+\$" "${texts[@]}" /dev/null | sed -E 's/^([^:]*:[0-9]+):.*/\1: blanks at the end of the line/'
  grep -nF "$tab" "${texts[@]}" /dev/null | sed -E 's/^([^:]*:[0-9]+):.*/\1: a tab; use spaces/'
  grep -nF $'\r' "${texts[@]}" /dev/null | sed -E 's/^([^:]*:[0-9]+):.*/\1: a carriage return; end lines with LF alone/'
  for file in "${texts[@]}"; do
    [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || echo "$file: no newline at the end"
  done
) || true
if [ -n "$found" ]; then
  printf '%s\n' "$found"
  bad=1
fi
[ "$bad" = 0 ] || fail 1 "the files above are not formatted (scripts/format.sh corrects all but tabs)"
