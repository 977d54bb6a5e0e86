#!/usr/bin/env bash
# `./run abi [save VERSION]` compares the C interface with that of each release that tests/abi/ keeps. The
# library is built with all of its types in the debug information, for abidiff.
set -euo pipefail
source "${BASH_SOURCE[0]%/*}/build.sh"

need abigail-tools
prepare
folder=$build/abi status=0
configure abi -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS='-g -Og' \
  -DGPUSHM_LIBRARY_ONLY=ON -DGPUSHM_WERROR=ON
make_targets "$folder" gpushm
library=$folder/lib/libgpushm.so.0
if [ "${1:-}" = save ]; then
  [ $# = 2 ] || die "usage: ./run abi save VERSION"
  abidw --exported-interfaces-only --drop-private-types --no-show-locs --no-comp-dir-path --no-corpus-path \
    --headers-dir runtime/include --out-file "tests/abi/$2.abi" "$library"
  sed -i "s|path='$root/|path='|" "tests/abi/$2.abi"
  say "saved tests/abi/$2.abi"
  exit
fi
python3 tests/abi/symbols.py "$library" || status=1
for baseline in tests/abi/*.abi; do
  [ -e "$baseline" ] || { say "no baseline in tests/abi: compared only the symbols"; break; }
  say "comparing with $baseline"
  abidiff "$baseline" "$library" >"$folder/changes.txt" && each=0 || each=$?
  cat "$folder/changes.txt"
  # Bits of the exit status: 1 and 2 errors, 4 a change, 8 an incompatible one. A struct that only
  # grew, and one whose members moved, are both 4.
  [ $((each & 11)) = 0 ] || status=1
  ! grep -nE 'offset changed|deletion|[1-9][0-9]* data member change|return type changed|parameter [0-9]+ .*(added|removed)' \
    "$folder/changes.txt" || status=1
done
[ $status = 0 ] || say "the C interface is not what programs were compiled with"
exit $status
