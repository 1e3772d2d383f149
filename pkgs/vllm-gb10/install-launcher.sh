# install-launcher.sh OUT LAUNCHER CUDA_HOME CXX ARCH, run in site-packages: bin/vllm becomes the launcher.
# CUDA_HOME is relative to site-packages, or "" for an engine without CUDA.
set -euo pipefail
out=$1 launcher=$2 cuda=$3 cxx=$4 arch=$5
libexec=$out/libexec/glmspark-engine
mkdir -p "$libexec"
cp "$launcher"/*.py "$libexec/"
mv "$out/bin/vllm" "$libexec/vllm"
key=$(basename "$out")
home=null
[ -z "$cuda" ] || home="\"$PWD/$cuda\""
cat > "$libexec/launch.json" <<JSON
{
  "program": "$libexec/vllm",
  "cuda_home": $home,
  "cxx": "$cxx",
  "path": ["$out/bin", "$(dirname "$cxx")"],
  "arch": "$arch",
  "key": "${key%%-*}"
}
JSON
printf '#!%s/bin/python3 -IB\nimport runpy\nrunpy.run_path("%s/launch.py", run_name="__main__")\n' \
  "$out" "$libexec" > "$out/bin/vllm"
chmod 555 "$out/bin/vllm"
