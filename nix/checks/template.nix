# The template's flake works on top of this one: its hosts evaluate and its kit passes the tool's check.
{
  glmspark,
  lib,
  runCommand,
  self,
}:
let
  template = import ../templates/kit/flake.nix;
  outputs = template.outputs { glmspark = self; };
  systems = lib.mapAttrs (
    _: host: builtins.unsafeDiscardStringContext host.config.system.build.toplevel.drvPath
  ) outputs.nixosConfigurations;
in
assert outputs.apps ? aarch64-linux.start;
runCommand "check-template" { nativeBuildInputs = [ glmspark ]; } ''
  HOME=$TMPDIR glmspark config check ${../templates/kit/kit.toml}
  echo ${toString (lib.attrValues systems)} > $out
''
