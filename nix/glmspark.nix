# The tool, from python/poetry.lock.
#
# poetry2nix reads [tool.poetry] of pyproject.toml and needs meta.license: without it it maps over lib.licenses,
# which has held functions since 2026 (NixOS/nixpkgs#468378). Its own overrides date from 2025, so none are used:
# every dependency comes as the wheel that the lock names.
{
  lib,
  pkgs,
  poetry2nix,
  python313,
}:
let
  inherit (import ./lib { inherit lib; }) poetry;
  p2n = import poetry2nix { inherit pkgs; };
  lock = builtins.readFile ../python/poetry.lock;
in
p2n.mkPoetryApplication {
  projectDir = ../python;
  poetrylock = builtins.toFile "poetry.lock" (poetry.linuxWheels lock);
  python = python313;
  preferWheels = true;
  checkGroups = [ ];
  overrides = p2n.overrides.withoutDefaults (_: _: { });
  pythonImportsCheck = [ "glmspark" ];
  meta = {
    description = "Serve GLM-5.3-Flash (EXL3) on two to four NVIDIA DGX Sparks";
    license = lib.licenses.asl20;
    mainProgram = "glmspark";
    platforms = lib.platforms.linux;
  };
}
