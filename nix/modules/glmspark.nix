# services.glmspark: this NixOS host as one rank of a kit.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.glmspark;
  ours = import ../lib { inherit lib; };
  toml = pkgs.formats.toml { };
  node = lib.optionalAttrs (cfg.rank < builtins.length (cfg.settings.nodes or [ ])) (
    builtins.elemAt cfg.settings.nodes cfg.rank
  );
  usesGpu = (cfg.settings.engine or "vllm-gb10") == "vllm-gb10";

  fromModule = {
    runtime = lib.mkDefault "nix";
    weights.store = toString cfg.weights.store;
  };
  paths = {
    state = "/var/lib/glmspark";
    cache = "/var/cache/glmspark";
    engine = lib.getExe cfg.engine;
  };
  rendered = toml.generate "kit.toml" (cfg.settings // { inherit paths; });
  # a kit that the tool refuses must fail nixos-rebuild, not the unit at boot
  kit = pkgs.runCommand "kit.toml" { nativeBuildInputs = [ cfg.package ]; } ''
    HOME=$TMPDIR glmspark config check ${rendered} >&2
    cp ${rendered} $out
  '';

  networks = lib.attrValues config.systemd.network.networks;
  declared = lib.concatMap (
    n: lib.optionals ((n.matchConfig.Name or null) == cfg.fabric.interface) (n.address or [ ])
  ) networks;
  fabricAddresses =
    if declared == [ ] then null else map (a: lib.head (lib.splitString "/" a)) declared;

  waitForFabric = pkgs.writeShellApplication {
    name = "glmspark-wait-for-fabric";
    runtimeInputs = [
      pkgs.coreutils
      pkgs.gnugrep
      pkgs.iproute2
    ];
    text = ''
      interface=$1 address=$2 seconds=$3
      for ((i = 0; i < seconds; i++)); do
        if ip -4 -oneline address show dev "$interface" 2>/dev/null | grep -qF " $address/"; then
          exit 0
        fi
        sleep 1
      done
      echo "error: $interface has not got $address within $seconds s" >&2
      echo "hint: ip address show dev $interface; is the cable in, is the interface name right?" >&2
      exit 1
    '';
  };
  dropCaches = pkgs.writeShellApplication {
    name = "glmspark-hygiene";
    runtimeInputs = [ pkgs.coreutils ];
    text = ''
      case ''${1:-} in
        drop-caches)
          sync
          echo 1 > /proc/sys/vm/drop_caches
          ;;
        *)
          echo "usage: glmspark-hygiene drop-caches" >&2
          exit 2
          ;;
      esac
    '';
  };
in
{
  imports = [ ./options.nix ];

  config = lib.mkIf cfg.enable {
    assertions = ours.relations { inherit cfg fabricAddresses; };

    services.glmspark.settings = fromModule;

    environment.etc."glmspark/kit.toml".source = kit;
    environment.systemPackages = [ cfg.package ];

    users.users.glmspark = {
      isSystemUser = true;
      group = "glmspark";
      home = "/var/lib/glmspark";
      description = "GLM-5.3-Flash rank";
    };
    users.groups.glmspark = { };

    systemd.services = ours.unit {
      inherit kit usesGpu;
      inherit (cfg) apiKeyFile rank;
      glmspark = cfg.package;
      environment = cfg.extraEnvironment;
      store = toString cfg.weights.store;
      waitForFabric = lib.escapeShellArgs [
        (lib.getExe waitForFabric)
        cfg.fabric.interface
        (node.fabric or "")
        cfg.fabric.waitSeconds
      ];
      dropCaches = if cfg.dropCaches then "${lib.getExe dropCaches} drop-caches" else null;
    };

    systemd.tmpfiles.settings."10-glmspark" = {
      ${toString cfg.weights.store}.d = {
        user = "glmspark";
        group = "glmspark";
        mode = "0750";
      };
      # compiled kernels of engines that no generation runs any more
      "/var/cache/glmspark/jit".d = {
        user = "glmspark";
        group = "glmspark";
        mode = "0750";
        age = "90d";
      };
    };

    networking.firewall = lib.mkMerge [
      (lib.mkIf cfg.openFirewall { allowedTCPPorts = [ (cfg.settings.serve.port or 8888) ]; })
      (lib.mkIf cfg.fabric.openFirewall (
        ours.firewall {
          inherit (cfg.fabric) interface subnet;
          usesNftables = config.networking.nftables.enable;
        }
      ))
    ];
  };
}
