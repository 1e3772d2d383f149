# The engine and the tool as one OCI image: no shell, no package manager, its own user.
{
  lib,
  cacert,
  dockerTools,
  engine,
  glmspark,
  revision,
  runCommand,
  tzdata,
  closureInfo,
  writeTextDir,
}:
let
  user = {
    name = "glmspark";
    id = "10001";
    home = "/var/lib/glmspark";
  };
  accounts = runCommand "glmspark-accounts" { } ''
    mkdir -p $out/etc
    echo 'root:x:0:0:root:/:/bin/false
    ${user.name}:x:${user.id}:${user.id}:glmspark:${user.home}:/bin/false' > $out/etc/passwd
    echo 'root:x:0:
    ${user.name}:x:${user.id}:' > $out/etc/group
    echo 'hosts: files dns' > $out/etc/nsswitch.conf
  '';
  programs = runCommand "glmspark-programs" { } ''
    mkdir -p $out/bin
    ln -s ${lib.getExe glmspark} $out/bin/glmspark
    ln -s ${lib.getExe engine} $out/bin/vllm
  '';
  # two images of one closure are the same image, whatever their tags
  closureHash = lib.substring 0 32 (
    baseNameOf (
      builtins.unsafeDiscardStringContext
        (closureInfo {
          rootPaths = [
            engine
            glmspark
          ];
        }).outPath
    )
  );
  source = "https://github.com/vllm-project/vllm";
in
dockerTools.streamLayeredImage {
  name = "glmspark";
  tag = engine.version;
  maxLayers = 100;
  contents = [
    accounts
    cacert
    programs
    tzdata
    (writeTextDir "etc/glmspark/closure" "${closureHash}\n")
  ];
  # the only writable folders; weights are mounted at the first, compiled kernels go to the second
  extraCommands = ''
    mkdir -p .${user.home} var/cache/glmspark tmp
    chmod 1777 .${user.home} var/cache/glmspark tmp
  '';
  config = {
    User = "${user.id}:${user.id}";
    WorkingDir = user.home;
    Entrypoint = [
      "/bin/glmspark"
      "rank"
    ];
    Env = [
      "GLMSPARK_PATHS_CACHE=/var/cache/glmspark"
      "GLMSPARK_PATHS_ENGINE=${lib.getExe engine}"
      "GLMSPARK_PATHS_STATE=${user.home}"
      "HOME=${user.home}"
      "PATH=/bin"
      "SSL_CERT_FILE=/etc/ssl/certs/ca-bundle.crt"
      "TZDIR=/share/zoneinfo"
    ];
    Labels = {
      "org.glmspark.closure" = closureHash;
      "org.glmspark.engine" = engine.pname;
      "org.opencontainers.image.description" = "GLM-5.3-Flash (EXL3) on DGX Sparks: one rank";
      "org.opencontainers.image.licenses" = "Apache-2.0";
      "org.opencontainers.image.revision" = revision;
      "org.opencontainers.image.source" = source;
      "org.opencontainers.image.title" = "glmspark";
      "org.opencontainers.image.version" = engine.version;
    };
  };
  passthru = {
    inherit closureHash engine;
  };
}
