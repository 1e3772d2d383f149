# The systemd units of one rank, as NixOS' systemd.services wants them. Pure: no option is read here.
{ lib }:
{
  # the tool, the kit file and the rank
  glmspark,
  kit,
  rank,
  # what must be there first: a program that waits for the fabric address, one that drops clean page cache or null
  waitForFabric,
  dropCaches,
  # where the API key lies for root, or null
  apiKeyFile,
  store,
  environment,
  usesGpu,
}:
let
  # the classes of failure (exit codes of glmspark) that another try cannot mend
  noRestart = [
    2 # usage
    3 # configuration
    4 # preflight
    7 # integrity
  ];
  common = {
    LockPersonality = true;
    NoNewPrivileges = true;
    PrivateTmp = true;
    ProtectClock = true;
    ProtectControlGroups = true;
    ProtectHome = true;
    ProtectHostname = true;
    ProtectKernelLogs = true;
    ProtectKernelModules = true;
    ProtectSystem = "strict";
    RestrictNamespaces = true;
    RestrictRealtime = true;
    RestrictSUIDSGID = true;
    SystemCallArchitectures = "native";
    UMask = "0027";
  };
  gpuDevices = [
    "char-infiniband_verbs rw"
    "char-nvidia* rw"
    "/dev/infiniband/rdma_cm rw"
    "/dev/infiniband/uverbs0 rw"
    "/dev/infiniband/uverbs1 rw"
    "/dev/infiniband/uverbs2 rw"
    "/dev/infiniband/uverbs3 rw"
  ];
in
{
  glmspark = {
    description = "GLM-5.3-Flash, rank ${toString rank}";
    wantedBy = [ "multi-user.target" ];
    wants = [ "network-online.target" ];
    requires = [ "glmspark-fabric.service" ];
    after = [
      "glmspark-fabric.service"
      "network-online.target"
    ]
    ++ lib.optional (dropCaches != null) "glmspark-hygiene.service"
    ++ lib.optional usesGpu "nvidia-persistenced.service";
    # a failing kit must not be restarted for ever: the fourth failure within an hour stays down
    startLimitBurst = 3;
    startLimitIntervalSec = 3600;
    environment = {
      GLMSPARK_KIT = toString kit;
      HOME = "/var/lib/glmspark";
    }
    // lib.optionalAttrs (apiKeyFile != null) {
      GLMSPARK_AUTH_KEY_FILE = "/run/credentials/glmspark.service/api-key";
    }
    // environment;
    serviceConfig =
      common
      // {
        ExecStart = "${lib.getExe glmspark} rank --rank ${toString rank}";
        User = "glmspark";
        Group = "glmspark";
        StateDirectory = "glmspark";
        StateDirectoryMode = "0750";
        CacheDirectory = "glmspark";
        RuntimeDirectory = "glmspark";
        ReadWritePaths = [ store ];
        # RDMA registers the memory that it sends: the default of 8 MiB fails in ibv_reg_mr
        LimitMEMLOCK = "infinity";
        LimitNOFILE = 1048576;
        TasksMax = 65536;
        # a rank that hangs in a collective does not answer SIGTERM; its memory must come back all the same
        KillMode = "mixed";
        TimeoutStopSec = 60;
        TimeoutStartSec = "infinity";
        Restart = "on-failure";
        RestartSec = 20;
        RestartPreventExitStatus = lib.concatMapStringsSep " " toString noRestart;
        OOMPolicy = "stop";
        AmbientCapabilities = "";
        CapabilityBoundingSet = "";
        DevicePolicy = "closed";
        ProcSubset = "all";
        ProtectKernelTunables = true;
        ProtectProc = "invisible";
        RemoveIPC = true;
        # a killed engine leaves shared-memory files of up to 160 MiB: they end with the unit
        TemporaryFileSystem = "/dev/shm:mode=1777";
        RestrictAddressFamilies = [
          "AF_INET"
          "AF_INET6"
          "AF_NETLINK"
          "AF_UNIX"
        ];
        SystemCallFilter = [
          "@system-service"
          "~@privileged"
        ];
        SystemCallErrorNumber = "EPERM";
      }
      // lib.optionalAttrs usesGpu { DeviceAllow = gpuDevices; }
      // lib.optionalAttrs (apiKeyFile != null) { LoadCredential = "api-key:${apiKeyFile}"; };
  }
  // lib.optionalAttrs (dropCaches != null) {
    wants = [
      "glmspark-hygiene.service"
      "network-online.target"
    ];
  };

  # network-online.target fires before a link that comes up late has its address
  glmspark-fabric = {
    description = "Wait for the fabric address of GLM-5.3-Flash";
    after = [ "network.target" ];
    serviceConfig = common // {
      Type = "oneshot";
      ExecStart = waitForFabric;
      DynamicUser = true;
      CapabilityBoundingSet = "";
      PrivateDevices = true;
      ProtectKernelTunables = true;
      ProtectProc = "invisible";
      RestrictAddressFamilies = [
        "AF_NETLINK"
        "AF_UNIX"
      ];
      SystemCallFilter = [
        "@system-service"
        "~@privileged"
      ];
      TimeoutStartSec = "infinity";
    };
  };
}
// lib.optionalAttrs (dropCaches != null) {
  # the one verb that needs root: it runs before each start and ends
  glmspark-hygiene = {
    description = "Give clean page cache back before GLM-5.3-Flash starts";
    serviceConfig = common // {
      Type = "oneshot";
      ExecStart = dropCaches;
      CapabilityBoundingSet = "";
      IPAddressDeny = "any";
      PrivateDevices = true;
      PrivateNetwork = true;
      # /proc/sys/vm/drop_caches is the one tunable that it writes
      ProtectKernelTunables = false;
      RestrictAddressFamilies = "none";
      SystemCallFilter = [
        "@system-service"
        "~@privileged"
      ];
    };
  };
}
