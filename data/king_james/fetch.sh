#!/usr/bin/env bash
# Fetches the King James Bible as one JSON line a chapter, 1,189 of them, from the Debian and Ubuntu packages bible-kjv and
# bible-kjv-text. Nothing is installed and no root is needed: the packages are unpacked into a temporary folder.
#   data/king_james/fetch.sh [FILE]     FILE: corpus/king_james.jsonl unless given; left alone when it is there and whole
set -euo pipefail

file=${1:-corpus/king_james.jsonl}
chapters=1189
fail() {
  printf 'error: %s\n' "$1" >&2
  exit 3
}

if [ -f "$file" ] && [ "$(wc -l <"$file")" = $chapters ]; then
  echo "$file: already there" >&2
  exit 0
fi
file=$(realpath -m "$file")
mkdir -p "$(dirname "$file")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

if command -v bible >/dev/null && [ -f /usr/lib/bible.data ]; then
  bible=bible
  texts=/usr/lib
else
  command -v apt-get >/dev/null || fail "apt-get is needed to fetch the packages bible-kjv and bible-kjv-text"
  # apt's own sandbox user may not write here; that is a warning, not a failure.
  apt-get -qq download bible-kjv bible-kjv-text 2>apt.log ||
    { [ "$(id -u)" = 0 ] && apt-get -qq update 2>apt.log && apt-get -qq download bible-kjv bible-kjv-text 2>apt.log; } ||
    fail "cannot fetch bible-kjv and bible-kjv-text ($(tail -1 apt.log)): run 'sudo apt-get update' first; on Ubuntu they are in universe"
  for package in ./*.deb; do dpkg-deb -x "$package" unpacked; done
  bible=$work/unpacked/usr/bin/bible
  texts=$work/unpacked/usr/lib
fi

# One verse a line, "Ge1:1 In the beginning ...": chapters become documents, verses lines.
"$bible" -p "$texts" -f -l 100000 gen1:1-rev22:21 </dev/null >verses.txt 2>bible.log ||
  fail "the program bible failed: $(tail -1 bible.log)"
LC_ALL=C awk '
  function finish() { if (chapter != "") printf "{\"id\": \"%s\", \"text\": \"%s\"}\n", chapter, text }
  {
    place = $1
    sub(/:[0-9]+$/, "", place)
    verse = substr($0, length($1) + 2)
    gsub(/\\/, "\\\\", verse)
    gsub(/"/, "\\\"", verse)
    if (place != chapter) { finish(); chapter = place; text = "" }
    text = text verse "\\n"
  }
  END { finish() }
' verses.txt >chapters.jsonl

[ "$(wc -l <chapters.jsonl)" = $chapters ] || fail "expected $chapters chapters, found $(wc -l <chapters.jsonl)"
mv chapters.jsonl "$file"
echo "$file: $chapters chapters, $(wc -c <"$file") bytes" >&2
