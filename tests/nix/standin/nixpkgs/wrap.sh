#!/bin/bash
# makeWrapper EXE OUT [--set K V] [--set-default K V] [--prefix K SEP V] [--suffix K SEP V] [--add-flags F]
# wrapProgram FILE ...
set -e
if [ "$(basename "$0")" = wrapProgram ]; then
  hidden=$(dirname "$1")/.$(basename "$1")-wrapped
  mv "$1" "$hidden"
  set -- "$hidden" "$@"
fi
exe=$1 out=$2 flags=
shift 2
{
  echo '#!/bin/bash'
  while [ $# -gt 0 ]; do
    case $1 in
      --set) printf 'export %s=%q\n' "$2" "$3"; shift 3 ;;
      --set-default) printf 'export %s=${%s-%q}\n' "$2" "$2" "$3"; shift 3 ;;
      --prefix) printf 'export %s=%q${%s:+%q$%s}\n' "$2" "$4" "$2" "$3" "$2"; shift 4 ;;
      --suffix) printf 'export %s=${%s:+$%s%q}%q\n' "$2" "$2" "$2" "$3" "$4"; shift 4 ;;
      --add-flags) flags="$flags $2"; shift 2 ;;
      *) echo "makeWrapper: $1 is not in the stand-in" >&2; exit 1 ;;
    esac
  done
  echo "exec $exe$flags \"\$@\""
} > "$out"
chmod +x "$out"
