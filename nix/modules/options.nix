# The options of services.glmspark.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.glmspark;
  toml = pkgs.formats.toml { };
  inherit (lib) mkEnableOption mkOption types;
in
{
  options.services.glmspark = {
    enable = mkEnableOption "this host as one rank of a GLM-5.3-Flash kit";

    rank = mkOption {
      type = types.ints.between 0 3;
      example = 1;
      description = ''
        Place of this host in `settings.nodes`, counted from 0. Rank 0 is the head: it serves the API.
      '';
    };

    role = mkOption {
      type = types.enum [
        "head"
        "worker"
      ];
      default = if cfg.rank == 0 then "head" else "worker";
      defaultText = lib.literalExpression ''if rank == 0 then "head" else "worker"'';
      description = "What this host is in the kit; stated where a reader should see it, checked against `rank`.";
    };

    package = lib.mkPackageOption pkgs "glmspark" { };

    engine = mkOption {
      type = types.package;
      default = pkgs.vllm-gb10;
      defaultText = lib.literalExpression "pkgs.vllm-gb10";
      description = "The vLLM that the rank runs. It must be the same store path on every host of the kit.";
    };

    settings = mkOption {
      inherit (toml) type;
      default = { };
      example = lib.literalExpression ''
        {
          topology = "tp2";
          nodes = [
            { name = "spark-1"; ssh = "spark-1"; fabric = "10.77.0.1"; }
            { name = "spark-2"; ssh = "spark-2"; fabric = "10.77.0.2"; }
          ];
          serve.host = "0.0.0.0";
        }
      '';
      description = ''
        The kit, as in kit.toml; `glmspark config schema` documents every key. It is rendered to
        /etc/glmspark/kit.toml and checked by `glmspark config check` while the system is built. It must be the
        same on every host of the kit.
      '';
    };

    fabric = {
      interface = mkOption {
        type = types.strMatching "[A-Za-z0-9_.-]{1,15}";
        example = "enp1s0f1np1";
        description = ''
          Network interface that carries this host's fabric address. Names differ from kit to kit:
          `glmspark node probe` lists them.
        '';
      };

      subnet = mkOption {
        type = types.strMatching "[0-9.]+/[0-9]{1,2}";
        example = "10.77.0.0/24";
        description = "IPv4 network of the fabric; only its hosts reach the ranks' rendezvous, ZMQ and blob ports.";
      };

      openFirewall = mkOption {
        type = types.bool;
        default = true;
        description = ''
          Whether to accept TCP from `fabric.subnet` on `fabric.interface`. NCCL, Gloo and ZMQ take ports of the
          ephemeral range, so this is by interface and subnet, not by port.
        '';
      };

      waitSeconds = mkOption {
        type = types.ints.between 1 3600;
        default = 300;
        description = "How long a start waits for the fabric address to appear on the interface, in seconds.";
      };
    };

    weights.store = mkOption {
      type = types.path;
      default = "/var/lib/glmspark/store";
      description = "Root of the weights store of this host (about 170 GiB for the target and a drafter).";
    };

    apiKeyFile = mkOption {
      type = types.nullOr types.path;
      default = null;
      example = "/run/secrets/glmspark-api-key";
      description = ''
        File with the API key, read by systemd as root and handed to the rank as a credential. It must not be in
        the Nix store, which every user can read. Needed on the head unless `settings.auth.mode` is "none".
      '';
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether to open the API port (`settings.serve.port`) on every interface. Head only.";
    };

    dropCaches = mkOption {
      type = types.bool;
      default = true;
      description = ''
        Whether to drop clean page cache before a start. On unified memory the CUDA driver counts page cache as
        used, and vLLM then refuses to start after the weights were read once.
      '';
    };

    extraEnvironment = mkOption {
      type = types.attrsOf types.str;
      default = { };
      example = {
        NCCL_DEBUG = "INFO";
      };
      description = "Further environment of the rank. Secrets do not belong here: units are world-readable.";
    };
  };
}
