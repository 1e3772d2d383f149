{ runCommand }: runCommand "todo" { } "exit 1"
