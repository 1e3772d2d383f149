# The reference of services.glmspark, generated from its options.
{
  lib,
  nixosOptionsDoc,
  pkgs,
}:
let
  evaluated = lib.evalModules {
    modules = [
      ./modules/options.nix
      { _module.args = { inherit pkgs; }; }
    ];
  };
in
(nixosOptionsDoc { options = { inherit (evaluated.options) services; }; }).optionsCommonMark
