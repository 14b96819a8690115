"""The bundled model with its calibration sets and lm-eval tasks, and the demonstration that runs on them."""

from pathlib import Path

FOLDER = Path(__file__).parent
MODEL_FOLDER = FOLDER / "model"
SETS_FOLDER = FOLDER / "sets"
TASKS_FOLDER = FOLDER / "tasks"
TASKS = {"demo_math": "math", "demo_capitals": "non_math", "demo_grammar": "non_math"}
