"""``python -m glmspark`` is the same command as ``glmspark``."""

from glmspark.cli import main

if __name__ == "__main__":
    main()
