# The image as an OCI layout folder, for tools that read one (skopeo, podman, registries' own).
{
  glmspark-image,
  glmspark-image-archive,
  runCommand,
  skopeo,
}:
runCommand "glmspark-oci-${glmspark-image.imageTag}" { nativeBuildInputs = [ skopeo ]; } ''
  skopeo --insecure-policy --tmpdir "$TMPDIR" copy --quiet \
    docker-archive:${glmspark-image-archive} "oci:$out:${glmspark-image.imageTag}"
''
