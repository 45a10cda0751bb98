#!/usr/bin/env bash
# Makes a folder that runs on another x86-64 Linux with LibTorch 2.11 and no development packages: the program, the
# libraries it needs, configurations, documentation, notices. Copy it anywhere and start its bin/osdn (docs/install.md).
#   scripts/bundle.sh [FOLDER]        build/bundle unless given, relative to the repository; an earlier bundle is replaced
#     --cpu                           a build without CUDA, for a LibTorch without CUDA
#     --with-parquet                  also the reader of Parquet files and Arrow, 50 MB (needs a build with Arrow)
#     --build BUILD                   takes the program of this build folder as it is, instead of the release build
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

folder=
preset=release
build=build/release
compile=yes
parquet=no
while [ $# -gt 0 ]; do
  argument=$1
  shift
  case $argument in
    --cpu) build=build/release-cpu ;;
    --with-parquet) parquet=yes ;;
    --build) [ $# -gt 0 ] || fail 2 "scripts/bundle.sh: --build needs a folder"; compile=no; build=$1; shift ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) fail 2 "scripts/bundle.sh: unknown argument '$argument' (--cpu, --with-parquet, --build)" ;;
    *) [ -z "$folder" ] || fail 2 "scripts/bundle.sh: one folder at most, got '$folder' and '$argument'"; folder=$argument ;;
  esac
done
folder=$(realpath -m "${folder:-build/bundle}")
max_mb=60

# Only a bundle is ever replaced: the folder's content is removed.
if [ -e "$folder" ] && [ ! -f "$folder/bundle.json" ] && [ -n "$(ls -A "$folder" 2>/dev/null || echo file)" ]; then
  fail 2 "$folder is there and is no bundle (no bundle.json in it); remove it or give another folder"
fi
command -v objdump >/dev/null || fail 3 "objdump (package binutils) is needed to see which libraries the program loads"

if [ "$compile" = yes ]; then
  if [ "$build" = build/release-cpu ]; then
    [ -f $build/build.ninja ] || run cmake --preset $preset -B $build -DOSDN_CUDA=OFF
    run cmake --build $build --parallel "$(build_jobs)" --target osdn
  else
    configure_and_build $preset osdn
  fi
fi
[ -x "$build/bin/osdn" ] || fail 2 "$build/bin/osdn is not there: build it first (cmake --build $build)"

# Everything is made beside the final place and renamed at the end: a bundle is complete or absent.
mkdir -p "$(dirname "$folder")"
stage=$(mktemp -d "$(dirname "$folder")/.bundle.XXXXXX")
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
mkdir "$stage/content"
run cmake --install "$build" --prefix "$stage/content" --strip >/dev/null
if [ "$parquet" = yes ]; then
  [ -x "$build/lib/osdn_parquet" ] ||
    fail 3 "$build has no Parquet reader: Arrow was not found when it was configured (scripts/setup.sh fetches it)"
  run cmake --install "$build" --prefix "$stage/content" --component parquet --strip >/dev/null
  max_mb=120
fi

# --- Which package each library is, and its notice.
declare -A packages=([libcli11-dev]= [nlohmann-json3-dev]= [libfmt-dev]= [libspdlog-dev]= [libjs-chart.js]=)
package_of() {  # file
  local path real
  real=$(realpath "$1")
  # On systems where /lib is /usr/lib, the package's list may name either.
  for path in "$1" "/usr$1" "$real" "${real#/usr}"; do
    ! dpkg-query -S "$path" 2>/dev/null | head -1 | cut -d: -f1 | grep . || return 0
  done
}
libraries=
if command -v dpkg-query >/dev/null; then
  while read -r name path; do
    package=$(package_of "$path")
    [ -n "$package" ] || { say "warning: $path belongs to no package: add its licence notice yourself"; continue; }
    packages[$package]=
    libraries+="${libraries:+,}
    \"$name\": \"$(dpkg-query -W -f '${source:Package} ${Version}' "$package")\""
  done < <(sort "$stage/content/lib/origins.txt"; for name in libstdc++.so.6 libgcc_s.so.1; do echo "$name $(g++ -print-file-name=$name)"; done)
  mkdir "$stage/content/licenses"
  if [ "$parquet" = yes ]; then
    find .deps/pyarrow-*.dist-info '(' -name 'LICENSE*' -o -name 'NOTICE*' ')' -print0 2>/dev/null | sort -z |
      xargs -0 -r cat >"$stage/content/licenses/arrow.txt"
    [ -s "$stage/content/licenses/arrow.txt" ] ||
      fail 3 "no licence text of Arrow below .deps/pyarrow-*.dist-info: run scripts/setup.sh"
  fi
  for package in "${!packages[@]}"; do
    notice=/usr/share/doc/$package/copyright
    if [ -f "$notice" ]; then
      cp -L "$notice" "$stage/content/licenses/$package.txt"
    else
      say "warning: no $notice: add the licence notice of $package yourself"
    fi
  done
else
  say "warning: no dpkg-query on this machine: the notices of the libraries in lib/ are not in the bundle"
fi
rm "$stage/content/lib/origins.txt"

# --- What the machine it will run on must have: the newest symbol version of glibc in any file.
objdump -T "$stage"/content/libexec/* "$stage"/content/lib/*.so* "$stage"/content/lib/runtime/*.so* |
  grep -oE 'GLIBC_[0-9]+\.[0-9]+' | sort -uV | tail -1 | cut -d_ -f2 >"$stage/content/lib/glibc_needed"

# --- It must start where nothing of this build is on any path.
libtorch=$(readelf -d "$build/bin/osdn" | sed -n 's/.*PATH.*\[\([^:]*\)\/lib[]:].*/\1/p')
version=$(env -i PATH=/usr/bin:/bin LIBTORCH_ROOT="$libtorch" "$stage/content/bin/osdn" --version) ||
  fail 1 "the bundle does not start; see its message above"

{
  say_json() { printf '  "%s": "%s",\n' "$1" "$2"; }
  printf '{\n'
  say_json program "$(sed -n 's/ (commit.*//p' <<<"$version")"
  say_json commit "$(sed -n 's/.*(commit \(.*\)).*/\1/p' <<<"$version")"
  say_json compiler "$(sed -n 's/^compiler \([0-9]\)/g++ \1/p;s/^compiler \([^0-9]\)/\1/p' <<<"$version")"
  say_json libtorch "$(sed -n 's/^LibTorch //p' <<<"$version")"
  say_json cuda "$(sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\(.*\)")/\1/p' "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake 2>/dev/null | grep . || echo none)"
  say_json built_on "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)"
  say_json glibc_needed "$(cat "$stage/content/lib/glibc_needed")"
  printf '  "libraries": {%s\n  }\n}\n' "$libraries"
} >"$stage/content/bundle.json"
(cd "$stage/content" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum >SHA256SUMS)
chmod -R u=rwX,go=rX "$stage/content"

megabytes=$((($(du -sb "$stage/content" | cut -f1) + 999999) / 1000000))
[ "$megabytes" -le "$max_mb" ] ||
  fail 1 "the bundle has $megabytes MB, $max_mb are wanted; largest files: $(cd "$stage/content" && find . -type f -printf '%s %P\n' | sort -rn | head -3 | tr '\n' ' ')"

rm -rf "$folder"
mv "$stage/content" "$folder"
say "bundle: $folder, $megabytes MB, needs glibc $(cat "$folder/lib/glibc_needed") and LibTorch 2.11; start $folder/bin/osdn"
