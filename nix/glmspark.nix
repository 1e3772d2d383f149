# The tool, from python/poetry.lock, in an environment of its own: the tool starts itself anew as
# `sys.executable -m glmspark`, which a wrapped script's Python could not.
#
# poetry2nix reads [tool.poetry] of pyproject.toml and needs meta.license: without it it maps over lib.licenses,
# which has held functions since 2026 (NixOS/nixpkgs#468378). Its own overrides date from 2025, so none are used:
# every dependency comes as the wheel that the lock names.
{
  lib,
  pkgs,
  poetry2nix,
  python313,
  runCommand,
}:
let
  inherit (import ./lib { inherit lib; }) poetry;
  p2n = import poetry2nix { inherit pkgs; };
  lock = builtins.readFile ../python/poetry.lock;
  meta = {
    description = "Serve GLM-5.3-Flash (EXL3) on two to four NVIDIA DGX Sparks";
    license = lib.licenses.asl20;
    mainProgram = "glmspark";
    platforms = lib.platforms.linux;
  };
  application = p2n.mkPoetryApplication {
    projectDir = ../python;
    poetrylock = builtins.toFile "poetry.lock" (poetry.linuxWheels lock);
    python = python313;
    preferWheels = true;
    checkGroups = [ ];
    overrides = p2n.overrides.withoutDefaults (_: _: { });
    pythonImportsCheck = [ "glmspark" ];
    inherit meta;
  };
in
runCommand "glmspark-${application.version}"
  {
    inherit meta;
    passthru = {
      inherit application;
      inherit (application) python version;
    };
  }
  ''
    mkdir -p $out/bin
    ln -s ${application.dependencyEnv}/bin/glmspark $out/bin/glmspark
  ''
