#!/bin/sh
# Builds a C project from its archive with make, in two jobs, and prints what came out: sums of all
# object files, and what the program says. Arguments: the archive
# of Lua 5.4, and options for the compiler.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
tar xzf "$1" -C "$directory" --strip-components=1
cd "$directory/src"
make -s -j2 linux MYCFLAGS="${2:-}"
sha256sum -- *.o lua luac
./lua -e 'local t = {} for i = 1, 300000 do t[i] = ("value %d"):format(i * 7) end
  table.sort(t) collectgarbage() print(#t, t[1], t[#t], collectgarbage("count") > 1000)'
