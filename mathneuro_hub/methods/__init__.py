"""One short file per method; norms and weights in, a mask set out."""

from mathneuro_hub.methods.magnitude import magnitude
from mathneuro_hub.methods.mathneuro import mathneuro
from mathneuro_hub.methods.random import random
from mathneuro_hub.methods.wanda import wanda

__all__ = ["magnitude", "mathneuro", "random", "wanda"]
