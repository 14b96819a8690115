"""A Hugging Face Hub to test against: stateful, in memory, on 127.0.0.1, spoken to by the real client libraries.

What flows through it: ``wire`` reads a request and lets ``faults`` interfere; ``routing`` finds the endpoint, one function
of an ``*_api`` module; the endpoint acts on the ``store`` (accounts, access) and its ``repo`` (commits, branches, tags,
pull requests), and answers with JSON, bytes or a ``HubError``. ``server.Hub`` is what a test holds.

It serves what huggingface_hub, transformers, peft and datasets ask for when Xet is off. Anything else is answered
with 501 and a sentence, so that a client's new habit shows at once.
"""

from .errors import HubError
from .faults import Exchange
from .repo import Commit, File, PullRequest, Repo
from .server import Hub

__all__ = ["Commit", "Exchange", "File", "Hub", "HubError", "PullRequest", "Repo"]
