# The ConnectX-7 cable: a fixed address and jumbo frames by systemd-networkd.
{
  lib,
  config,
  site,
  ...
}:
let
  cfg = config.services.glmspark;
  node = builtins.elemAt cfg.settings.nodes cfg.rank;
in
{
  systemd.network = {
    enable = true;
    networks."40-glmspark-fabric" = {
      matchConfig.Name = site.fabric.interface;
      address = [ "${node.fabric}/${toString site.fabric.prefixLength}" ];
      linkConfig = {
        # RoCE payloads of 4096 bytes need more than 1500; both ends must agree
        MTUBytes = "9000";
        # a Spark without its cable must still boot and be reachable
        RequiredForOnline = "no";
      };
      networkConfig = {
        # an address of its own would move the RoCE GID of the IPv4 address to another index
        LinkLocalAddressing = "no";
        IPv6AcceptRA = false;
      };
    };
  };
  # one manager for each link: dhcpcd, NixOS' default, or NetworkManager, where a host enables it, would ask for an
  # address on the cable too and take ours away
  networking.useNetworkd = lib.mkDefault true;
  networking.networkmanager.unmanaged = [ "interface-name:${site.fabric.interface}" ];
  networking.hosts = lib.listToAttrs (
    map (n: lib.nameValuePair n.fabric [ "${n.name}-fabric" ]) cfg.settings.nodes
  );
}
