"""Checks that the wheel installs exactly the three packages, with the bundled model in it: `make build`."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

EXPECTED = {"mathneuro_hub", "mathneuro_hub_cli", "mathneuro_hub_cards"}


def main(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    if packages != EXPECTED:
        sys.exit(f"{wheel} installs {sorted(packages)}, expected {sorted(EXPECTED)}.")
    needed = [
        "demo/model/model.safetensors",
        "demo/model/tokenizer.json",
        "demo/sets/math.jsonl",
        "demo/tasks/demo_math.yaml",
    ]
    missing = [name for name in needed if f"mathneuro_hub/{name}" not in names]
    if missing:
        sys.exit(f"{wheel} lacks {missing}.")
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) installs {sorted(packages)}; {sdist.name} is beside it.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
