# Packages that are links to this machine's programs, a name a line, and names that are empty here.
{ lib, stdenv }:
let
  link =
    name: programs:
    stdenv.mkDerivation {
      pname = name;
      version = "debian";
      dontUnpack = true;
      installPhase = ''
        mkdir -p $out/bin
        for p in ${toString programs}; do
          for dir in /usr/bin /bin /usr/sbin /sbin; do
            if [ -e "$dir/$p" ] && [ ! -e "$out/bin/$p" ]; then ln -s "$dir/$p" "$out/bin/$p"; fi
          done
        done
        if [ -z "$(ls "$out/bin")" ]; then
          echo "none of ${toString programs} is on this machine (package ${name})" >&2
          exit 1
        fi
      '';
      meta.mainProgram = lib.head programs;
    };
  # a formatter or linter that Debian lacks says so and does nothing
  absent =
    name:
    stdenv.mkDerivation {
      pname = name;
      version = "absent";
      dontUnpack = true;
      installPhase = ''
        mkdir -p $out/bin
        printf '#!/bin/sh\necho "%s is not on this machine: nothing was checked" >&2\n' ${name} > $out/bin/${name}
        chmod +x $out/bin/${name}
      '';
    };
  empty =
    name:
    stdenv.mkDerivation {
      inherit name;
      dontUnpack = true;
      installPhase = "mkdir -p $out";
    };
in
lib.mapAttrs (name: programs: link name (lib.splitString " " programs)) {
  bash = "bash sh";
  binutils = "objdump readelf";
  bashNonInteractive = "bash sh";
  coreutils =
    "cat cp cut date dirname du echo env head id ln ls mkdir mktemp nproc readlink rm sha256sum "
    + "sleep sort stat tail tee timeout touch tr uname wc";
  curl = "curl";
  diffutils = "cmp diff";
  findutils = "find xargs";
  gawk = "awk";
  gcc = "gcc g++ cc c++";
  git = "git";
  glibc_bin = "ldconfig ldd";
  gnugrep = "grep";
  gnused = "sed";
  gnutar = "tar";
  gzip = "gzip";
  iproute2 = "ip ss";
  jq = "jq";
  nftables = "nft";
  nix = "nix";
  ninja = "ninja";
  openssh = "ssh scp ssh-keygen";
  patch = "patch";
  patchelf = "patchelf";
  skopeo = "skopeo";
  systemd = "systemctl systemd-analyze";
  uv = "uv";
  util-linux = "flock mount";
}
// lib.genAttrs [
  "deadnix"
  "nixfmt"
  "ruff"
  "shellcheck"
  "shfmt"
  "statix"
  "treefmt"
] absent
// lib.genAttrs [
  "cacert"
  "cmake"
  "ethtool"
  "numactl"
  "rdma-core"
  "tzdata"
  "zlib"
] empty
