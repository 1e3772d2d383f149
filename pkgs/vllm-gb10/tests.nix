# What is true of the engine's tree; slow, so these are built by `make check-full`.
{
  binutils,
  lib,
  runCommand,
  stdenv,
  vllm-gb10,
}:
let
  site = "${vllm-gb10}/${vllm-gb10.python.sitePackages}";
  # installed for another machine: no library of that machine is here, and no run path has been set
  isForeign = vllm-gb10.machine != stdenv.hostPlatform.parsed.cpu.name;
  allowed =
    vllm-gb10.autoPatchelfIgnoreMissingDeps
    ++ lib.optionals isForeign [
      "ld-linux-*.so.*"
      "lib[cm].so.6"
      "libdl.so.2"
      "libgcc_s.so.1"
      "libgomp.so.1*"
      "libibverbs.so.1"
      "libmlx5.so.1"
      "libpthread.so.0"
      "librt.so.1"
      "libstdc++.so.6"
      "libutil.so.1"
      "libz.so.1"
    ];
  libraries = lib.makeLibraryPath [
    stdenv.cc.cc.lib
    stdenv.cc.libc
  ];
  # the driver is not in a build sandbox: a library with its names and no code lets torch and vLLM be imported
  stub = runCommand "stub-libcuda" { nativeBuildInputs = [ stdenv.cc ]; } ''
    mkdir $out
    ${vllm-gb10.python.interpreter} ${./elf.py} undefined ${site} 'cu[A-Z]*' > names
    sed 's/.*/int &(void) { return 100; } \/* CUDA_ERROR_NO_DEVICE *\//' names > stub.c
    cc -shared -fPIC -w -o $out/libcuda.so.1 -Wl,-soname,libcuda.so.1 stub.c
  '';
in
{
  # every ELF file finds its libraries, but for the driver's and those of optional back ends
  elf = runCommand "vllm-gb10-elf" { } ''
    ${vllm-gb10.python.interpreter} ${./elf.py} resolve ${vllm-gb10} "${libraries}" \
      ${lib.optionalString isForeign "--inside"} --allow ${lib.escapeShellArgs allowed} > found || {
        cat found >&2
        exit 1
      }
    tail -n 1 found | tee $out
  '';

  imports = runCommand "vllm-gb10-imports" { } ''
    export LD_LIBRARY_PATH=${stub} HOME=$TMPDIR VLLM_CACHE_ROOT=$TMPDIR/cache
    ${vllm-gb10}/bin/python3 - <<'PY' | tee $out
    from importlib.metadata import entry_points, version
    import torch, vllm
    assert version("vllm") == "${vllm-gb10.version}"
    names = {point.name for point in entry_points(group="vllm.general_plugins")}
    assert "exl3" in names, names
    print(torch.__version__, vllm.__version__, sorted(names))
    PY
  '';

  # a host without the driver is told so, with the exit status of a failed preflight
  no-driver = runCommand "vllm-gb10-no-driver" { } ''
    status=0
    HOME=$TMPDIR ${vllm-gb10}/bin/vllm --version 2> said || status=$?
    cat said
    test "$status" = 4
    grep -q "no NVIDIA driver" said
    touch $out
  '';

  size = runCommand "vllm-gb10-size" { } ''
    kib=$(du -sk ${vllm-gb10} | cut -f1)
    echo "$((kib / 1024)) MiB unpacked" | tee $out
    test "$kib" -le $((12 * 1024 * 1024))
  '';
}
