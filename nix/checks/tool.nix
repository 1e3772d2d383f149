# The packaged tool runs, knows its version, and exits with 2 on bad usage.
{
  glmspark,
  lib,
  runCommand,
}:
runCommand "check-tool" { nativeBuildInputs = [ glmspark ]; } ''
  glmspark --version | tee $out
  grep -F "${glmspark.version}" $out
  status=0
  glmspark --no-such-flag 2> usage || status=$?
  cat usage
  test "$status" = 2
  test ${lib.getExe glmspark} = "$(command -v glmspark)"
''
