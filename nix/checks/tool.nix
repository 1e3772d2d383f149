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
  # the tool starts itself anew by the Python that runs it, with no help from the environment
  python=$(sed -n '1s/^#!//p' "$(readlink -f "$(command -v glmspark)")")
  case $python in
    *python*) env -i "$python" -m glmspark --version ;;
    *) echo "glmspark is a compiled wrapper here: its Python is not asked" ;;
  esac
  test ${lib.getExe glmspark} = "$(command -v glmspark)"
''
