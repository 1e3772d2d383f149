# Relations between the options of services.glmspark, as NixOS assertions.
#
# What only concerns `settings` is checked by `glmspark config check` when kit.toml is built; here stands what ties
# settings to this host, and what that command cannot see.
{ lib }:
{
  cfg,
  # IPv4 addresses that the host's own configuration gives to the fabric interface; null: not known
  fabricAddresses ? null,
}:
let
  nodes = cfg.settings.nodes or [ ];
  count = builtins.length nodes;
  isHead = cfg.rank == 0;
  node = builtins.elemAt nodes cfg.rank;
  address = node.fabric or "";
  isKnownNode = cfg.rank < count;
  auth = cfg.settings.auth.mode or "auto";
  host = cfg.settings.serve.host or "127.0.0.1";
  isLocal = host == "localhost" || lib.hasPrefix "127." host || host == "::1";
  api = cfg.settings.serve.port or 8888;
  inStore = path: lib.hasPrefix builtins.storeDir (toString path);
  quoted = lib.concatMapStringsSep ", " (n: n.name or "?") nodes;
  option = name: "services.glmspark.${name}";

  octets = ip: map lib.toInt (lib.splitString "." ip);
  number = ip: lib.foldl' (acc: o: acc * 256 + o) 0 (octets ip);
  isIpv4 = ip: builtins.match "[0-9]{1,3}(\\.[0-9]{1,3}){3}" ip != null;
  power = n: if n == 0 then 1 else 2 * power (n - 1);
  inSubnet =
    subnet: ip:
    let
      parts = lib.splitString "/" subnet;
      size = power (32 - lib.toInt (lib.last parts));
    in
    isIpv4 ip && isIpv4 (lib.head parts) && number ip / size == number (lib.head parts) / size;
in
[
  {
    assertion = isKnownNode;
    message =
      "${option "rank"} is ${toString cfg.rank}, but ${option "settings.nodes"} has ${toString count} nodes"
      + " (${quoted}). Needed: a rank below ${toString count}, or all nodes of the kit in settings.nodes.";
  }
  {
    assertion = (cfg.role == "head") == isHead;
    message =
      "${option "role"} is ${cfg.role} with rank ${toString cfg.rank}: rank 0 is the head, the others are workers."
      + " Leave role out, or set the other rank.";
  }
  {
    assertion = isKnownNode -> inSubnet cfg.fabric.subnet address;
    message =
      "${option "settings.nodes"}: ${address} of rank ${toString cfg.rank} is not in ${option "fabric.subnet"}"
      + " ${cfg.fabric.subnet}. The firewall would drop the other ranks.";
  }
  {
    assertion = isKnownNode && fabricAddresses != null -> builtins.elem address fabricAddresses;
    message =
      "${option "settings.nodes"} gives rank ${toString cfg.rank} the fabric address ${address}, but this host's"
      + " ${cfg.fabric.interface} has ${
         if fabricAddresses == [ ] || fabricAddresses == null then
           "no address"
         else
           lib.concatStringsSep ", " fabricAddresses
       }. Set the interface's address, or the node's fabric.";
  }
  {
    assertion = isKnownNode -> (node.netdev or "") == "" || node.netdev == cfg.fabric.interface;
    message =
      "${option "settings.nodes"}: netdev ${node.netdev or ""} of rank ${toString cfg.rank} is not"
      + " ${option "fabric.interface"} ${cfg.fabric.interface}. Leave netdev out, or make them equal.";
  }
  {
    assertion = isHead && auth != "none" -> cfg.apiKeyFile != null;
    message =
      "${option "apiKeyFile"} is not set on the head, and ${option "settings.auth.mode"} is ${auth}."
      + " Name a file with the key, or set settings.auth.mode to \"none\" with serve.host 127.0.0.1.";
  }
  {
    assertion = cfg.apiKeyFile != null -> !inStore cfg.apiKeyFile;
    message =
      "${option "apiKeyFile"} is ${toString cfg.apiKeyFile}, in the world-readable Nix store. Use a string with the"
      + " path of a file that root alone reads, not a path literal.";
  }
  {
    assertion = cfg.openFirewall -> isHead;
    message = "${option "openFirewall"} is set on rank ${toString cfg.rank}: only the head has an API. Unset it.";
  }
  {
    assertion = cfg.openFirewall -> !isLocal;
    message =
      "${option "openFirewall"} opens port ${toString api}, but ${option "settings.serve.host"} is ${host}, which"
      + " other hosts cannot reach. Set serve.host to an address of the network, or leave openFirewall off.";
  }
  {
    assertion = !inStore cfg.weights.store;
    message = "${option "weights.store"} is in the Nix store, which is read-only. Name a folder of a data disk.";
  }
  {
    assertion =
      (cfg.settings.engine or "vllm-gb10") == "vllm-cpu" -> (cfg.engine.runtime or "cpu") == "cpu";
    message =
      "${option "settings.engine"} is vllm-cpu, but ${option "engine"} is ${cfg.engine.name}, which needs a GPU."
      + " Set engine to pkgs.vllm-loopback, or settings.engine to vllm-gb10.";
  }
  {
    assertion =
      (cfg.settings.engine or "vllm-gb10") == "vllm-gb10" -> (cfg.engine.runtime or "cuda") == "cuda";
    message =
      "${option "settings.engine"} is vllm-gb10, but ${option "engine"} is ${cfg.engine.name}, which has no GPU"
      + " code. Leave engine out, or set settings.engine to vllm-cpu.";
  }
  {
    assertion = (cfg.settings.paths or { }) == { };
    message =
      "${option "settings.paths"} is set: on NixOS the folders and the engine come from the module."
      + " Use weights.store and engine.";
  }
]
