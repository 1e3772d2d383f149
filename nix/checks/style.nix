# Tabs, trailing space, width and final newline of Nix and shell files, without any tool that a machine may lack.
{
  lib,
  python313,
  runCommand,
}:
runCommand "check-style" { } ''
  ${python313.interpreter} ${./style.py} ${
    lib.fileset.toSource {
      root = ../..;
      fileset = lib.fileset.unions [
        ../../flake.nix
        ../../hosts
        ../../nix
        ../../pkgs
        ../../tests/nix
      ];
    }
  } | tee $out
''
