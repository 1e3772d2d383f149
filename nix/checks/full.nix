# Slow derivations, built by `make check-full` and by hand: nix build .#legacyPackages.SYSTEM.full-checks.NAME
{ pkgs }:
let
  inherit (pkgs) lib;
  isAarch64 = pkgs.stdenv.hostPlatform.isAarch64;

  # The engine's tree is the same bytes wherever it is installed, so an x86_64 machine can look at its files.
  tree =
    if isAarch64 then
      pkgs.vllm-gb10
    else
      pkgs.vllm-gb10.override {
        machine = "aarch64";
        kernels = null;
      };
  treeTests = pkgs.callPackage ../../pkgs/vllm-gb10/tests.nix { vllm-gb10 = tree; };
in
{
  engine-tree = tree;
  engine-size = treeTests.size;
  engine-elf = treeTests.elf;
  kernels = pkgs.glmspark-kernels;
  kernels-machine-code = pkgs.glmspark-kernels.tests.machine-code;
  source-sm121a = pkgs.callPackage ./source-sm121a.nix { };
}
// lib.optionalAttrs isAarch64 {
  engine-imports = treeTests.imports;
  engine-no-driver = treeTests.no-driver;
  image = pkgs.glmspark-image-archive;
}
// lib.optionalAttrs (!isAarch64) {
  loopback-engine = pkgs.vllm-loopback;
  loopback-image = pkgs.glmspark-image-archive;
  loopback-oci = pkgs.glmspark-oci;
}
