# `nix develop`: what `make check` and the checks of this flake use.
{ pkgs }:
pkgs.mkShellNoCC {
  name = "glmspark";
  packages = [
    pkgs.deadnix
    pkgs.git
    pkgs.jq
    pkgs.nixfmt
    pkgs.patch
    pkgs.python313
    pkgs.ruff
    pkgs.shellcheck
    pkgs.shfmt
    pkgs.skopeo
    pkgs.statix
  ];
}
