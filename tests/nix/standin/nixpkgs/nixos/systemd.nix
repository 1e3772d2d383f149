# systemd options, and units as text the way NixOS writes them, so that systemd-analyze can read them.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  of = type: default: mkOption { inherit type default; };
  strings = of (types.listOf types.str) [ ];
  atom = types.oneOf [
    types.bool
    types.int
    types.float
    types.str
    types.path
    types.package
  ];
  section = of (types.attrsOf (types.nullOr (types.either atom (types.listOf atom)))) { };

  listed = [
    "after"
    "before"
    "bindsTo"
    "conflicts"
    "onFailure"
    "partOf"
    "requires"
    "wantedBy"
    "wants"
  ];
  unitModule.options = lib.genAttrs listed (_: strings) // {
    description = of types.str "";
    documentation = strings;
    environment = of (types.attrsOf (types.nullOr atom)) { };
    path = of (types.listOf (types.either types.package types.str)) [ ];
    script = of types.lines "";
    preStart = of types.lines "";
    postStop = of types.lines "";
    restartTriggers = of (types.listOf types.unspecified) [ ];
    restartIfChanged = of types.bool true;
    stopIfChanged = of types.bool true;
    startLimitBurst = of (types.nullOr types.int) null;
    startLimitIntervalSec = of (types.nullOr types.int) null;
    serviceConfig = section;
    unitConfig = section;
    timerConfig = section;
  };
  units = of (types.attrsOf (types.submodule unitModule)) { };

  value = v: if lib.isBool v then lib.boolToString v else toString v;
  line = name: v: "${name}=${value v}\n";
  entry =
    name: v:
    if v == null then
      ""
    else if lib.isList v then
      lib.concatMapStrings (line name) v
    else
      line name v;
  render = set: lib.concatStrings (lib.mapAttrsToList entry set);
  upper = s: lib.toUpper (lib.substring 0 1 s) + lib.substring 1 (-1) s;

  unitSection =
    u:
    let
      ordering = lib.mapAttrs' (n: v: lib.nameValuePair (upper n) (lib.concatStringsSep " " v)) (
        lib.filterAttrs (n: v: lib.elem n listed && n != "wantedBy" && v != [ ]) u
      );
    in
    ordering
    // lib.optionalAttrs (u.description != "") { Description = u.description; }
    // lib.optionalAttrs (u.documentation != [ ]) {
      Documentation = lib.concatStringsSep " " u.documentation;
    }
    // lib.optionalAttrs (u.startLimitBurst != null) { StartLimitBurst = u.startLimitBurst; }
    // lib.optionalAttrs (u.startLimitIntervalSec != null) {
      StartLimitIntervalSec = u.startLimitIntervalSec;
    }
    // u.unitConfig;
  script = name: key: text: {
    ${key} = lib.optionalString (
      text != ""
    ) "${pkgs.writeShellScript "${name}-${key}" "set -e\n${text}"}";
  };
  scripts =
    name: u:
    lib.filterAttrs (_: v: v != "") (
      script name "ExecStart" u.script
      // script name "ExecStartPre" u.preStart
      // script name "ExecStopPost" u.postStop
    );
  environment =
    u:
    let
      search = lib.optionalAttrs (u.path != [ ]) {
        PATH = "${lib.makeBinPath u.path}:${lib.makeSearchPath "sbin" u.path}";
      };
      one = k: v: lib.optionalString (v != null) "Environment=${builtins.toJSON "${k}=${value v}"}\n";
    in
    lib.concatStrings (lib.mapAttrsToList one (search // u.environment));
  install =
    u:
    lib.optionalString (u.wantedBy != [ ])
      "\n[Install]\n${render { WantedBy = lib.concatStringsSep " " u.wantedBy; }}";
  head = u: "[Unit]\n${render (unitSection u)}";
  service =
    name: u:
    "${head u}\n[Service]\n${environment u}${render (scripts name u // u.serviceConfig)}${install u}";
  timer = u: "${head u}\n[Timer]\n${render u.timerConfig}${install u}";
  named = suffix: text: lib.mapAttrs' (n: u: lib.nameValuePair "${n}.${suffix}" { text = text n u; });
in
{
  options.systemd = {
    services = units;
    targets = units;
    timers = units;
    network = {
      enable = of types.bool false;
      networks = of (types.attrsOf types.anything) { };
      links = of (types.attrsOf types.anything) { };
      wait-online = of types.anything { };
    };
    tmpfiles = {
      rules = strings;
      settings = of types.anything { };
    };
    units = of (types.attrsOf types.unspecified) { };
  };
  config.systemd.units =
    named "service" service config.systemd.services
    // named "timer" (_: timer) config.systemd.timers
    // named "target" (_: u: "${head u}${install u}") config.systemd.targets;
}
