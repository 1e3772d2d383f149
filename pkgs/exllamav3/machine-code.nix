# The kernels hold machine code for GB10 and for nothing else.
{
  glmspark-kernels,
  python313,
  runCommand,
}:
runCommand "glmspark-kernels-machine-code" { } ''
  for library in $(find ${glmspark-kernels}/ -name '*.so'); do
    ${python313.interpreter} ${../vllm-gb10/elf.py} machine-code "$library" | tee found
    grep -qx 'sm_121a' found
    ! grep -vqx 'sm_121a' found
  done
  test -s found
  cp found $out
''
