# What all Sparks share: hardware, login, containers, Nix, the rank.
{
  lib,
  config,
  site,
  ...
}:
{
  hardware.dgx-spark.enable = true;

  services.glmspark = {
    enable = true;
    fabric = { inherit (site.fabric) interface subnet; };
    openFirewall = config.services.glmspark.rank == 0;
  };

  services.openssh = {
    enable = true;
    settings = {
      PasswordAuthentication = false;
      PermitRootLogin = "prohibit-password";
    };
  };
  users.users.admin = {
    isNormalUser = true;
    extraGroups = [ "wheel" ];
    openssh.authorizedKeys.keys = site.adminKeys;
  };
  users.users.root.openssh.authorizedKeys.keys = site.adminKeys;
  warnings =
    lib.optional (site.adminKeys == [ ])
      "hosts/site.nix: adminKeys is empty, so nobody can log in to ${config.networking.hostName} over ssh";

  # runtime = "oci": podman hands the GPU over by CDI
  virtualisation.podman.enable = true;
  hardware.nvidia-container-toolkit.enable = true;

  # an 8 MiB limit (the default) makes ibv_reg_mr fail in shells and containers too
  security.pam.loginLimits =
    map
      (type: {
        domain = "*";
        inherit type;
        item = "memlock";
        value = "unlimited";
      })
      [
        "soft"
        "hard"
      ];

  nix.settings = {
    experimental-features = [
      "nix-command"
      "flakes"
    ];
    # `nix copy` from the head brings the engine: wheel users may bring unsigned paths
    trusted-users = [
      "root"
      "@wheel"
    ];
  };

  time.timeZone = lib.mkDefault "UTC";
  system.stateVersion = lib.mkDefault "26.05";
}
