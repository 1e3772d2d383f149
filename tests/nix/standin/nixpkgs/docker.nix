# dockerTools.streamLayeredImage: one layer a store path, the last takes what is over maxLayers. The result writes
# a docker-archive to its standard output, as nixpkgs' does.
{
  lib,
  platform,
  runCommand,
  stdenv,
  writeText,
}:
{
  streamLayeredImage =
    {
      name,
      tag ? "latest",
      contents ? [ ],
      config ? { },
      architecture ? (if platform.isAarch64 then "arm64" else "amd64"),
      created ? "1970-01-01T00:00:01Z",
      maxLayers ? 100,
      extraCommands ? "",
      passthru ? { },
      meta ? { },
    }:
    let
      conf = stdenv.mkDerivation {
        name = "${baseNameOf name}-conf.json";
        __structuredAttrs = true;
        dontUnpack = true;
        exportReferencesGraph.graph = contents ++ [ (writeText "config.json" (builtins.toJSON config)) ];
        image = {
          inherit
            architecture
            config
            created
            maxLayers
            name
            tag
            ;
          contents = map toString contents;
          custom = "${custom}";
        };
        installPhase = "python3 ${./image.py} conf $NIX_ATTRS_JSON_FILE $out";
      };
      custom = runCommand "${baseNameOf name}-customisation" { } ''
        # an archive, as in nixpkgs: the store would take the folders' modes away
        mkdir root
        cd root
        ${extraCommands}
        tar --sort=name --mtime=@1 --owner=0 --group=0 --numeric-owner -cf $out .
      '';
    in
    runCommand "stream-${baseNameOf name}"
      {
        inherit meta;
        passthru = {
          imageName = name;
          imageTag = tag;
        }
        // passthru;
      }
      ''
        printf '#!/bin/sh\nexec /usr/bin/python3 %s stream %s\n' ${./image.py} ${conf} > $out
        chmod +x $out
      '';
  caCertificates = null;
}
