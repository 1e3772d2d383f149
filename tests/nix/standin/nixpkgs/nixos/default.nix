# lib.nixosSystem of the stand-in: the options that this project sets, and systemd units as text.
{ lib }:
{
  modules,
  system ? null,
  specialArgs ? { },
}:
let
  platform = if system != null then system else evaluated.config.nixpkgs.hostPlatform;
  pkgs = import ../. {
    system = platform;
    inherit (evaluated.config.nixpkgs) config overlays;
  };
  base = {
    _module.args = {
      pkgs = if evaluated.config.nixpkgs.pkgs != null then evaluated.config.nixpkgs.pkgs else pkgs;
      modulesPath = toString ./.;
    };
  };
  evaluated = lib.evalModules {
    modules = [
      ./options.nix
      ./system.nix
      ./systemd.nix
      base
    ]
    ++ modules;
    inherit specialArgs;
  };
in
evaluated // { inherit (evaluated.config._module.args) pkgs; }
