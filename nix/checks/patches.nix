# Every patch of overlay/vllm applies to vLLM's sdist with no fuzz, and comes off again.
{
  lib,
  runCommand,
  vllm-gb10-src,
}:
let
  inherit (import ../lib/overlay.nix { inherit lib; }) patchesIn;
  folders = {
    vllm = patchesIn ../../overlay/vllm;
    source = [ ../../pkgs/vllm-gb10/sm121a-arch.patch ];
  };
  patches = folders.vllm ++ folders.source;
in
runCommand "check-patches" { inherit patches; } ''
  mkdir source
  tar -xf ${vllm-gb10-src.sdist} -C source --strip-components=1
  cd source
  for p in $patches; do
    patch --strip=1 --fuzz=0 --no-backup-if-mismatch < "$p"
  done
  for p in $(printf '%s\n' $patches | tac); do
    patch --strip=1 --fuzz=0 --reverse < "$p"
  done
  echo ${toString (builtins.length patches)} patches > $out
''
