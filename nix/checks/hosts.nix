# The four hosts evaluate to a system, have an address on the fabric, and name one engine.
{
  lib,
  runCommand,
  self,
}:
let
  hosts = self.nixosConfigurations;
  facts = lib.mapAttrs (_: host: {
    inherit (host.config.networking) hostName;
    address = host.config.systemd.network.networks."40-glmspark-fabric".address;
    system = builtins.unsafeDiscardStringContext host.config.system.build.toplevel.drvPath;
  }) hosts;
  expected = lib.genAttrs [ "spark-1" "spark-2" "spark-3" "spark-4" ] lib.id;
  # dhcpcd, which runs where networkd does not do all, would take the fabric's address away
  isOneManager = lib.all (host: host.config.networking.useNetworkd) (lib.attrValues hosts);
in
assert isOneManager;
assert lib.mapAttrs (_: f: f.hostName) facts == expected;
runCommand "check-hosts" {
  text = builtins.toJSON facts;
  passAsFile = [ "text" ];
} "cp $textPath $out"
