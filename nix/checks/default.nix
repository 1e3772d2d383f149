# `nix flake check`: everything that takes seconds. Slow derivations (the wheel tree, the kernels, the GPU image) are
# passthru.tests of their packages and are built by `make check-full`.
{ pkgs, self }:
let
  inherit (pkgs) lib;
  stubEngine = pkgs.callPackage ./stub-engine.nix { };
  call = lib.callPackageWith (pkgs // { inherit self stubEngine; });
  ours = import ../lib { inherit lib; };
in
{
  tool = call ./tool.nix { };
  lib = call ./lib.nix { inherit ours; };
  units = call ./units.nix { inherit ours; };
  relations = call ./relations.nix { };
  hosts = call ./hosts.nix { };
  template = call ./template.nix { };
  image = call ./image.nix { };
  wheel-tree = call ./wheel-tree.nix { };
  patches = call ./patches.nix { };
  option-docs = pkgs.glmspark-option-docs;
  style = call ./style.nix { };
  format = call ./format.nix { };
  vm = call ./vm.nix { };
}
