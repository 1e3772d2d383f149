# A stand-in for nixpkgs' lib: what this project's Nix files use, and no more. A name that is missing here
# is an evaluation error, on purpose: it makes a typing mistake visible without nixpkgs.
let
  parts = [
    ./trivial.nix
    ./lists.nix
    ./attrs.nix
    ./strings.nix
    ./paths.nix
    ./packages.nix
    ./options.nix
    ./modules.nix
  ];
  merge = builtins.foldl' (acc: part: acc // import part { inherit lib; }) { };
  lib = merge parts // {
    types = import ./types.nix { inherit lib; };
    nixosSystem = import ../nixos { inherit lib; };
    attrsets = lib;
    lists = lib;
    modules = lib;
    options = lib;
    strings = lib;
    trivial = lib;
  };
in
lib
