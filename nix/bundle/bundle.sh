# bundle.sh DIR [MANIFEST...]: $KIT's closure as a file cache, $IMAGE as an archive, weights manifests, checksums,
# and the kind of machine ($SYSTEM) that they are for.
set -euo pipefail
dir=${1:?usage: bundle DIR [weights.lock.json ...]}
shift
if [ -e "$dir/SHA256SUMS" ]; then
  echo "error: $dir already holds a bundle; name an empty folder" >&2
  exit 2
fi
mkdir -p "$dir/manifests"
echo "closure of $KIT ..." >&2
nix copy --extra-experimental-features nix-command --no-check-sigs \
  --to "file://$(realpath "$dir")/cache?compression=none" "$KIT"
echo "$KIT" > "$dir/closure"
echo "$SYSTEM" > "$dir/system"
echo "image ..." >&2
"$IMAGE" > "$dir/image.tar"
for manifest in "$@"; do cp "$manifest" "$dir/manifests/"; done
install -m 755 "$INSTALL" "$dir/install"
cd "$dir"
find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum > SHA256SUMS
echo "$dir: $(du -sh . | cut -f1), install with: $dir/install" >&2
