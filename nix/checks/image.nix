# The image around a stub engine: its layers, user, labels and folders, the same bytes twice, and OCI tools read it.
{
  glmspark-bundle,
  glmspark-image,
  jq,
  lib,
  runCommand,
  skopeo,
  stdenv,
  stubEngine,
}:
let
  image = glmspark-image.override { engine = stubEngine; };
in
runCommand "check-image"
  {
    nativeBuildInputs = [
      jq
      skopeo
    ];
    # a bundle that an air-gapped host can install in seconds: tests/nix/test_bundle.py
    passthru = {
      inherit image;
      bundle = glmspark-bundle.override { engine = stubEngine; };
    };
  }
  ''
    ${image} > first.tar
    ${image} > second.tar
    cmp first.tar second.tar
    skopeo --insecure-policy --tmpdir "$TMPDIR" inspect --config docker-archive:first.tar > config.json
    jq -e '.config.User == "10001:10001"' config.json
    jq -e '.config.Entrypoint == ["/bin/glmspark", "rank"]' config.json
    jq -e '.config.Labels["org.glmspark.closure"] == "${image.closureHash}"' config.json
    jq -e '.config.Labels["org.opencontainers.image.version"] == "${image.imageTag}"' config.json
    jq -e '.architecture == "${if stdenv.hostPlatform.isAarch64 then "arm64" else "amd64"}"' config.json
    jq -e '.rootfs.diff_ids | length <= 100' config.json
    jq -e '[.config.Env[] | select(test("KEY|TOKEN|SECRET"))] == []' config.json
    # its user can write to the folders of state and cache
    top=$(tar -xOf first.tar manifest.json | jq -r '.[0].Layers[-1]')
    tar -xOf first.tar "$top" | tar -tvf - > files
    for folder in var/lib/glmspark var/cache/glmspark tmp; do
      grep -E "^drwxrwxrwt .* (\./)?$folder/?$" files
    done
    skopeo --insecure-policy --tmpdir "$TMPDIR" copy --quiet docker-archive:first.tar oci:oci:check
    skopeo --insecure-policy --tmpdir "$TMPDIR" inspect --raw oci:oci:check | jq -e '.layers | length > 3'
    sha256sum first.tar > $out
    stat --format="%s bytes, %n" first.tar >> $out
  ''
