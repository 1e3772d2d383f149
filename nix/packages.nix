# What `nix build .#NAME` gives. The engine for GB10 exists on aarch64; the CPU engine of the loopback kit on x86_64.
{ pkgs }:
let
  inherit (pkgs) lib;
in
{
  default = pkgs.glmspark;
  inherit (pkgs) glmspark;
  image = pkgs.glmspark-image;
  image-archive = pkgs.glmspark-image-archive;
  oci = pkgs.glmspark-oci;
  option-docs = pkgs.glmspark-option-docs;
}
// lib.optionalAttrs pkgs.stdenv.hostPlatform.isAarch64 {
  inherit (pkgs) glmspark-kernels vllm-gb10 vllm-gb10-src;
}
// lib.optionalAttrs pkgs.stdenv.hostPlatform.isx86_64 {
  # x86_64 host code around the same sm_121a device code: what can be built and read without a Spark
  inherit (pkgs) glmspark-kernels vllm-loopback;
}
