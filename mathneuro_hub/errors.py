"""Every error that mathneuro-hub raises on purpose.

A message is one sentence with what is wrong, the value it is wrong with, and the remedy. The command line turns
each of these into that sentence and exit status 1; anything else is a defect of ours.

::

    MathNeuroError
    ├── SettingError (ValueError)       an option outside what it may be
    ├── DataError (ValueError)          a data set that is missing, empty, or not what it was said to be
    ├── ModelError (OSError)            a model or checkpoint that cannot be found, read or edited
    │   └── BaseMismatchError           an adapter or norms file that belongs to another base model
    ├── CalibrationError (RuntimeError) activations that are not finite, or a run that does not fit
    ├── FormatError (ValueError)        a file of ours that is damaged, foreign, or of a newer version
    ├── OutputError (OSError)           an output that exists, or cannot be written
    ├── EvaluationError (RuntimeError)  an lm-eval task or run that fails
    └── HubError (OSError)              an answer of the Hub that stops a pull or a push
"""


class MathNeuroError(Exception):
    """Base of all errors raised on purpose."""


class SettingError(MathNeuroError, ValueError):
    """An option outside what it may be."""


class DataError(MathNeuroError, ValueError):
    """A data set that is missing, empty, or not what it was said to be."""


class ModelError(MathNeuroError, OSError):
    """A model or checkpoint that cannot be found, read or edited."""


class BaseMismatchError(ModelError):
    """An adapter or norms file that belongs to another base model."""


class CalibrationError(MathNeuroError, RuntimeError):
    """Activations that are not finite, or a run that does not fit."""


class FormatError(MathNeuroError, ValueError):
    """A file of this project that is damaged, foreign, or of a newer version."""


class OutputError(MathNeuroError, OSError):
    """An output that exists already, or cannot be written."""


class EvaluationError(MathNeuroError, RuntimeError):
    """An lm-eval task or run that fails."""


class HubError(MathNeuroError, OSError):
    """An answer of the Hub that stops a pull or a push."""
