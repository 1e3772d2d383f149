{
  description = "My GLM-5.3-Flash kit";

  # where you got glmspark from; a path works too
  inputs.glmspark.url = "github:glmspark/glmspark";

  outputs =
    { glmspark, ... }:
    let
      settings = builtins.fromTOML (builtins.readFile ./kit.toml);
      site = {
        inherit settings;
        adminKeys = [ ];
        apiKeyFile = "/etc/glmspark-api-key";
        fabric = {
          interface = "enp1s0f0np0";
          subnet = "10.77.0.0/24";
          prefixLength = 24;
        };
        hostModules = { };
      };
      disk = {
        fileSystems."/".device = "/dev/disk/by-label/nixos";
        fileSystems."/".fsType = "ext4";
      };
    in
    {
      # `nix run .#start`, `nix run .#status`, ...: run here, they find ./kit.toml
      inherit (glmspark) apps;

      # only where the Sparks run NixOS: nixos-rebuild switch --flake .#spark-1
      nixosConfigurations = {
        spark-1 = glmspark.lib.mkSpark {
          rank = 0;
          inherit site;
          modules = [ disk ];
        };
        spark-2 = glmspark.lib.mkSpark {
          rank = 1;
          inherit site;
          modules = [ disk ];
        };
      };
    };
}
