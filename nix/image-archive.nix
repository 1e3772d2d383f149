# The image as one file for a USB disk: `podman load -i FILE` or `docker load -i FILE`.
{
  glmspark-image,
  runCommand,
}:
runCommand "glmspark-image-${glmspark-image.imageTag}.tar" { } ''
  ${glmspark-image} > $out
''
