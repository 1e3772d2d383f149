#!/bin/sh
# install [--nix | --podman | --docker]: put this bundle's engine and tool on this host. No network is used.
# Without a flag: Nix where there is one, else podman, else docker.
set -eu
here=$(dirname "$(readlink -f "$0")")
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit "$3"; }

cd "$here"
sha256sum --quiet --strict -c SHA256SUMS ||
  fail "files of the bundle are damaged (listed above)" "copy the bundle again" 7

# an image of another machine loads without a word and then ends with "exec format error"
machine=$(uname -m)-linux system=$(cat system)
[ "$machine" = "$system" ] ||
  fail "this bundle is for $system, this host is $machine" "write a bundle on such a machine; Sparks are aarch64" 4

how=${1:-}
if [ -z "$how" ]; then
  for tool in nix podman docker; do
    if command -v "$tool" > /dev/null; then how=--$tool; break; fi
  done
fi
kit=$(cat closure)
case $how in
  --nix)
    # --no-check-sigs: the checksums above are what vouches for the paths; only a trusted user may do this
    nix copy --extra-experimental-features nix-command --no-check-sigs --from "file://$here/cache" "$kit" ||
      fail "Nix did not take the closure" "run this as root, or as a user in trusted-users of nix.conf" 5
    mkdir -p /nix/var/nix/gcroots
    ln -sfn "$kit" /nix/var/nix/gcroots/glmspark
    echo "$kit/bin/glmspark"
    ;;
  --podman | --docker)
    "${how#--}" load -i image.tar ;;
  "") fail "neither nix nor podman nor docker is on this host" "install one, then run this again" 4 ;;
  *) fail "unknown argument $how" "install [--nix | --podman | --docker]" 2 ;;
esac
