# Pure functions: each expression has the value that tests/nix/lib.nix expects, and each exported function has a test.
{
  lib,
  ours,
  runCommand,
}:
let
  suite = import ../../tests/nix/lib.nix { inherit lib ours; };
  wrong = lib.filterAttrs (_: t: t.expr != t.expected) suite;
  exported = [
    "firewall"
    "overlay.patchesIn"
    "overlay.pluginsIn"
    "poetry.linuxWheels"
    "relations"
    "unit"
    "wheels.entry"
    "wheels.fetch"
    "wheels.parse"
  ];
  untested = lib.filter (name: !lib.any (lib.hasPrefix "${name}:") (lib.attrNames suite)) exported;
  unknown = lib.filter (name: !lib.hasAttrByPath (lib.splitString "." name) ours) exported;
  flat = lib.concatMap (
    name:
    if lib.isFunction ours.${name} then
      [ name ]
    else
      map (f: "${name}.${f}") (lib.attrNames ours.${name})
  ) (lib.attrNames ours);
  show = name: t: "${name}: expected ${builtins.toJSON t.expected}, got ${builtins.toJSON t.expr}";
in
assert lib.assertMsg (wrong == { }) (lib.concatStringsSep "\n" (lib.mapAttrsToList show wrong));
assert lib.assertMsg (untested == [ ]) "no test in tests/nix/lib.nix for ${toString untested}";
assert lib.assertMsg (
  unknown == [ ] && lib.subtractLists exported flat == [ ]
) "nix/lib exports ${toString flat}; tested are ${toString exported}";
runCommand "check-lib" { } "echo ${toString (builtins.length (lib.attrNames suite))} > $out"
