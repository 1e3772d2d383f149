# What NixOS itself asserts of users and disks, and a toplevel that holds the rendered units.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  users = lib.filter (u: u.name != "root") (lib.attrValues config.users.users);
  failed = map (a: a.message) (lib.filter (a: !a.assertion) config.assertions);
  unitFiles = lib.mapAttrs' (
    name: unit: lib.nameValuePair "etc/systemd/system/${name}" (pkgs.writeText name unit.text)
  ) config.systemd.units;
  etcFiles = lib.mapAttrs' (
    _: file:
    lib.nameValuePair "etc/${file.target}" (
      if file.source != null then file.source else pkgs.writeText (baseNameOf file.target) file.text
    )
  ) config.environment.etc;
in
{
  config = {
    assertions = [
      {
        assertion = lib.all (u: u.isSystemUser != u.isNormalUser) users;
        message = "Exactly one of isSystemUser and isNormalUser must be set for each user.";
      }
      {
        assertion = lib.all (u: !u.isSystemUser || u.group != "") users;
        message = "A system user's group is unset.";
      }
      {
        assertion = config.fileSystems ? "/";
        message = "The `fileSystems' option does not specify your root file system.";
      }
    ];
    system.build.toplevel =
      if failed != [ ] then
        throw "\nFailed assertions:\n${lib.concatMapStringsSep "\n" (m: "- ${m}") failed}"
      else
        lib.foldl' (system: message: lib.warn message system) (pkgs.linkFarm
          "nixos-system-${config.networking.hostName}-standin"
          (unitFiles // etcFiles)
        ) config.warnings;
  };
}
