#!/usr/bin/env bash
# Holds the libraries of a program against each other: two that export a variable of the same name with different sizes
# overwrite each other's memory, since the dynamic linker gives both the one that comes first. Such a name must be defined
# by the program itself, large enough for all (src/data/tokenizer.cpp does so). Prints name and libraries; exit code 1.
#   scripts/check_symbols.sh PROGRAM
#   scripts/check_symbols.sh --self-test     builds such a pair and fails unless it is found, and its cure accepted
set -euo pipefail

# name, size in hexadecimal digits, library: every strong variable that a file exports.
variables_of() {
  nm -DS --defined-only "$1" 2>/dev/null |
    awk -v file="$(basename "$1")" 'NF == 4 && $3 ~ /^[BDR]$/ { sub(/@.*/, "", $4); print $4, $2, file }'
}

check_program() {
  local program=$1 library found
  found=$(
    {
      variables_of "$program" | sed 's/$/ program/'
      ldd "$program" | awk '$3 ~ /^\// { print $3 }' | sort -u | while read -r library; do variables_of "$library"; done
    } | awk '
      $4 == "program" { if (!($1 in own) || $2 > own[$1]) own[$1] = $2; next }
      $3 in seen_of && seen_of[$3] ~ " " $1 " " { next }  # versions of one name in one library
      { seen_of[$3] = seen_of[$3] " " $1 " "; if ($2 > largest[$1]) largest[$1] = $2
        if ($1 in size && size[$1] != $2) clash[$1] = 1
        size[$1] = $2; where[$1] = where[$1] " " $3 " (0x" substr($2, 9) " bytes)" }
      END { for (name in clash) if (!(name in own) || own[name] < largest[name]) print name ":" where[name] }' | sort
  )
  [ -z "$found" ] && return 0
  printf '%s\n' "$found"
  return 1
}

self_test() {
  local folder
  folder=$(mktemp -d)
  # The path is known now and the variable is gone when the shell ends.
  # shellcheck disable=SC2064
  trap "rm -rf '$folder'" EXIT
  cd "$folder"
  echo 'int shared_name = 1; int only_here = 2;' >first.c
  echo 'char shared_name[32]; int same_size = 3;' >second.c
  echo 'extern int only_here, same_size; int main(void) { return only_here + same_size == 5 ? 0 : 1; }' >program.c
  echo 'char shared_name[64]; extern int only_here, same_size; int main(void) { return only_here + same_size - 5; }' >cured.c
  cc -shared -fPIC first.c -o libfirst.so
  cc -shared -fPIC second.c -o libsecond.so
  for name in program cured; do cc "$name.c" -o "$name" -L. -lfirst -lsecond -Wl,-rpath,"$folder"; done
  if check_program ./program >found; then
    echo "self-test: two variables of different sizes were not found"
    exit 1
  fi
  grep -q '^shared_name: .*libfirst.so.*libsecond.so\|^shared_name: .*libsecond.so.*libfirst.so' found || {
    echo "self-test: expected shared_name with both libraries, got: $(cat found)"
    exit 1
  }
  check_program ./cured || {
    echo "self-test: a name that the program defines was refused (above)"
    exit 1
  }
  echo "check_symbols self-test: the pair was found, its cure accepted"
}

case "${1:-}" in
  --self-test) self_test ;;
  "") echo "error: scripts/check_symbols.sh: expected a program (or --self-test)" >&2; exit 2 ;;
  *)
    check_program "$1" ||
      { echo "check_symbols: the libraries above overwrite each other's variables in $1" >&2; exit 1; }
    ;;
esac
