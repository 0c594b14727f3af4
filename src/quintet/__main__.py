"""So that `torchrun -m quintet …` and `accelerate launch -m quintet …` work."""

from quintet.cli import main

if __name__ == "__main__":
    main()
