# An engine that only says how it was started, for checks of what surrounds an engine. It serves nothing.
{
  python313,
  writeTextFile,
}:
(writeTextFile {
  name = "stub-engine";
  executable = true;
  destination = "/bin/vllm";
  text = ''
    #!${python313.interpreter}
    import json, os, sys
    print(json.dumps({"argv": sys.argv, "env": dict(os.environ)}))
  '';
  meta.mainProgram = "vllm";
})
// {
  pname = "stub-engine";
  version = "0.32.0";
}
