# `nix fmt` would change nothing.
{
  callPackage,
  lib,
  runCommand,
}:
let
  formatter = callPackage ../formatter.nix { };
  source = lib.fileset.toSource {
    root = ../..;
    fileset = lib.fileset.unions [
      ../../flake.nix
      ../../hosts
      ../../nix
      ../../pkgs
      ../../python/pyproject.toml
      ../../tests/nix
    ];
  };
in
runCommand "check-format" { } ''
  cp -r ${source} tree
  chmod -R u+w tree
  cd tree
  export HOME=$TMPDIR
  ${lib.getExe formatter} --no-cache --fail-on-change
  touch $out
''
