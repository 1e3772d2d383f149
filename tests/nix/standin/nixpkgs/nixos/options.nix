# NixOS options that the project's modules and hosts set, an option a line. `collected` ones are only stored,
# for tests to look at; an option which is missing here is an error: check its name, then add it.
{ lib, ... }:
let
  inherit (lib) mkOption types;
  collected = mkOption {
    type = types.anything;
    default = { };
  };
  of = type: default: mkOption { inherit type default; };
  strings = of (types.listOf types.str) [ ];
  toggle = of types.bool;
  text = of types.lines "";
  ports = {
    allowedTCPPorts = of (types.listOf types.port) [ ];
    allowedUDPPorts = of (types.listOf types.port) [ ];
    allowedTCPPortRanges = of (types.listOf (types.attrsOf types.port)) [ ];
    allowedUDPPortRanges = of (types.listOf (types.attrsOf types.port)) [ ];
  };
  account =
    { name, ... }:
    {
      options = {
        name = of types.str name;
        description = of types.str "";
        uid = of (types.nullOr types.int) null;
        gid = of (types.nullOr types.int) null;
        isSystemUser = toggle false;
        isNormalUser = toggle false;
        group = of types.str "";
        extraGroups = strings;
        home = of types.str "/var/empty";
        createHome = toggle false;
        openssh.authorizedKeys.keys = strings;
      };
    };
  accounts = of (types.attrsOf (types.submodule account)) { };
  etcFile =
    { name, ... }:
    {
      options = {
        text = of (types.nullOr types.lines) null;
        source = of (types.nullOr types.path) null;
        mode = of types.str "symlink";
        user = of types.str "+0";
        group = of types.str "+0";
        target = of types.str name;
      };
    };
in
{
  options = {
    assertions = of (types.listOf types.unspecified) [ ];
    warnings = strings;
    boot = {
      kernel.sysctl = of (types.attrsOf types.anything) { };
      kernelModules = strings;
      kernelParams = strings;
      loader.efi.canTouchEfiVariables = toggle false;
      loader.systemd-boot.enable = toggle false;
    };
    environment = {
      etc = of (types.attrsOf (types.submodule etcFile)) { };
      systemPackages = of (types.listOf types.package) [ ];
    };
    fileSystems = of (types.attrsOf types.attrs) { };
    hardware = {
      enableRedistributableFirmware = toggle false;
      infiniband.enable = toggle false;
      nvidia-container-toolkit.enable = toggle false;
    };
    networking = {
      hostName = of (types.strMatching "([[:alnum:]]([[:alnum:]_-]{0,61}[[:alnum:]])?)?") "nixos";
      hosts = of (types.attrsOf (types.listOf types.str)) { };
      interfaces = collected;
      networkmanager.unmanaged = of (types.listOf types.str) [ ];
      nftables.enable = toggle false;
      useDHCP = toggle true;
      useNetworkd = toggle false;
      firewall = ports // {
        enable = toggle true;
        interfaces = of (types.attrsOf (types.submodule { options = ports; })) { };
        trustedInterfaces = strings;
        extraCommands = text;
        extraStopCommands = text;
        extraInputRules = text;
      };
    };
    nix = {
      settings = collected;
      gc = collected;
    };
    nixpkgs = {
      config = collected;
      hostPlatform = mkOption {
        type = types.unspecified;
        apply = x: if lib.isAttrs x then x.system else x;
      };
      overlays = of (types.listOf types.unspecified) [ ];
      pkgs = of types.unspecified null;
    };
    programs.nix-ld.enable = toggle false;
    security = {
      pam.loginLimits = of (types.listOf types.attrs) [ ];
      polkit.enable = toggle false;
      sudo.wheelNeedsPassword = toggle true;
    };
    services = {
      openssh.enable = toggle false;
      openssh.settings = collected;
      timesyncd.enable = toggle true;
      resolved.enable = toggle false;
    };
    system = {
      build = collected;
      stateVersion = mkOption { type = types.str; };
    };
    time.timeZone = of (types.nullOr types.str) null;
    users = {
      users = accounts;
      groups = accounts;
      mutableUsers = toggle true;
    };
    virtualisation = {
      memorySize = of types.ints.positive 1024;
      cores = of types.ints.positive 1;
      vlans = of (types.listOf types.ints.unsigned) [ 1 ];
      diskSize = of (types.nullOr types.ints.positive) 1024;
      podman = {
        enable = toggle false;
        dockerCompat = toggle false;
        defaultNetwork.settings = collected;
      };
    };
  };
}
