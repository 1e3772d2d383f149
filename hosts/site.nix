# What only you know: edit this file, and no other, to run the hosts of this flake on your Sparks.
#
# Disks are left to you (or to disko): give each host its file systems in `hostModules`.
{ lib }:
{
  # who may log in, and administer through sudo
  adminKeys = [ ];

  # the kit, the same for every host; see `glmspark config schema`
  settings = {
    topology = "tp2";
    nodes = map (n: {
      name = "spark-${toString n}";
      ssh = "spark-${toString n}";
      fabric = "10.77.0.${toString n}";
    }) (lib.range 1 2);
    serve.host = "0.0.0.0";
  };

  # the cable: `glmspark node probe` prints the names on your kit
  fabric = {
    interface = "enp1s0f0np0";
    subnet = "10.77.0.0/24";
    prefixLength = 24;
  };

  # a file on the head that root alone can read; make it with
  #   install -m 600 /dev/null /etc/glmspark-api-key && openssl rand -hex 24 > /etc/glmspark-api-key
  apiKeyFile = "/etc/glmspark-api-key";

  # per host: disks, boot loader, anything else. The label below is a placeholder that lets the hosts evaluate.
  hostModules =
    let
      disk = {
        fileSystems."/" = {
          device = "/dev/disk/by-label/nixos";
          fsType = "ext4";
        };
        fileSystems."/boot" = {
          device = "/dev/disk/by-label/ESP";
          fsType = "vfat";
        };
        boot.loader.systemd-boot.enable = true;
        boot.loader.efi.canTouchEfiVariables = true;
      };
    in
    lib.genAttrs (map (n: "spark-${toString n}") (lib.range 1 4)) (_: disk);
}
