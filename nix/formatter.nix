# `nix fmt`: one formatter for Nix, Python and shell.
{
  deadnix,
  nixfmt,
  ruff,
  shellcheck,
  shfmt,
  statix,
  treefmt,
  writeShellApplication,
}:
writeShellApplication {
  name = "glmspark-fmt";
  runtimeInputs = [
    deadnix
    nixfmt
    ruff
    shellcheck
    shfmt
    statix
    treefmt
  ];
  text = ''
    exec treefmt --config-file ${./treefmt.toml} --tree-root-file flake.nix "$@"
  '';
}
