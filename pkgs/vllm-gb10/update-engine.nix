# The command that writes the wheel locks anew.
{
  python313,
  uv,
  writeShellApplication,
}:
writeShellApplication {
  name = "glmspark-update-engine";
  runtimeInputs = [
    uv
    (python313.withPackages (p: [ p.pip ]))
  ];
  text = ''
    exec python3 ${./update_engine.py} "$@"
  '';
}
