"""Texts in, activation norms out."""

from mathneuro_hub.calibration.calibrator import Calibrator
from mathneuro_hub.calibration.data import DataSpec, TextSet, load_texts
from mathneuro_hub.calibration.norms import ActivationNorms
from mathneuro_hub.calibration.run import calibrate

__all__ = ["ActivationNorms", "Calibrator", "DataSpec", "TextSet", "calibrate", "load_texts"]
