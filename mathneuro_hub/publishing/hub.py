"""Publishing: a plan that says everything, then one commit that does it."""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, ModelCard

from mathneuro_hub.adapter.adapter import NeurosurgeryAdapter
from mathneuro_hub.adapter.baking import bake
from mathneuro_hub.adapter.config import CONFIG_FILE, MASKS_FILE, NeurosurgeryConfig
from mathneuro_hub.adapter.peft_export import export_peft
from mathneuro_hub.base_model import BaseModel, find_base
from mathneuro_hub.calibration.calibrator import norms_cache
from mathneuro_hub.errors import HubError, SettingError
from mathneuro_hub.evaluation.report import RESULTS_FILE, EvaluationReport
from mathneuro_hub.publishing.amend import amend
from mathneuro_hub.publishing.card import CARD_FILE, LEADERBOARD_FOLDER, write_baked_card, write_card
from mathneuro_hub.publishing.figure import FIGURE_FILE
from mathneuro_hub.publishing.metadata import TAG, check_metadata, is_hub_id, own_lists
from mathneuro_hub.publishing.target import Target, look_up
from mathneuro_hub.remote import clear_errors, client, endpoint, fetch

NORMS_FOLDER = "norms"
PEFT_FOLDER = "peft"

Sort = Literal["downloads", "date"]
_OURS = (
    CONFIG_FILE,
    MASKS_FILE,
    RESULTS_FILE,
    FIGURE_FILE,
    f"{LEADERBOARD_FOLDER}/{TAG}-*",
    f"{NORMS_FOLDER}/*",
    f"{PEFT_FOLDER}/*",
)
_CHECKPOINT = ("*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True)
class PushPlan:
    """All that a push will do.

    Attributes:
        target: the repo as it was when the plan was made; a push onto any other state of it is refused.
        folder: what is published; its ``README.md`` gives way to ``card``.
        files: path in the repo and size in bytes of each file.
        deleted: paths in the repo that an earlier push put there and this one no longer has.
        card: the whole card, an existing one amended.
        private: make a new repo private.
        create_pr: propose the commit as a pull request.
        commit_message: its title.
    """

    target: Target
    folder: Path
    files: tuple[tuple[str, int], ...]
    deleted: tuple[str, ...]
    card: str
    private: bool
    create_pr: bool
    commit_message: str

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)


def plan_push(
    folder: Path,
    target: Target,
    *,
    private: bool = False,
    create_pr: bool = False,
    commit_message: str | None = None,
    source: Path | None = None,
) -> PushPlan:
    """What publishing ``folder``, which holds an adapter or a baked model with its card, will do. Makes no request.

    Args:
        folder: what is published.
        target: where to.
        private: make a new repo private.
        create_pr: propose the commit as a pull request.
        commit_message: its title.
        source: the adapter's own folder; what a person wrote into the card there goes into a repo without a card.

    Raises:
        HubError: the repo holds the other kind, or the card's metadata is invalid.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    kind = "model" if "config.json" in names else "adapter"
    if target.holds not in (None, kind):
        raise HubError(
            f"{target.repo_id} holds {'an adapter' if kind == 'model' else 'a baked model'}, and this is the other kind; "
            "push to another repo."
        )
    card = (folder / CARD_FILE).read_text(encoding="utf-8")
    if target.card is not None and target.card.strip():
        outdated = own_lists(target.config) if target.config is not None else {}
        card = amend(target.card, card, outdated, name=target.repo_id.rpartition("/")[2])
    elif source is not None and (source / CARD_FILE).is_file():
        written = (source / CARD_FILE).read_text(encoding="utf-8", errors="replace")
        config = NeurosurgeryConfig.from_json((folder / CONFIG_FILE).read_text("utf-8"), CONFIG_FILE)
        card = amend(written, card, own_lists(config), name=source.resolve().name)
    check_metadata(card)
    sizes = {name: path.stat().st_size for name, path in zip(names, paths, strict=True)}
    sizes[CARD_FILE] = len(card.encode())
    patterns = _OURS + (_CHECKPOINT if kind == "model" else ())
    deleted = sorted(
        path for path in target.files - sizes.keys() if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
    )
    return PushPlan(
        target=target,
        folder=folder,
        files=tuple(sizes.items()),
        deleted=tuple(deleted),
        card=card,
        private=private,
        create_pr=create_pr,
        commit_message=commit_message or f"Publish a neurosurgery {kind} with mathneuro-hub",
    )


def validate(plan: PushPlan, token: str | None = None) -> None:
    """Have the Hub check the card's metadata; nothing is uploaded.

    Raises:
        HubError: it refuses, or cannot be reached.
    """
    client(token)
    with clear_errors(plan.target.repo_id):
        try:
            ModelCard(plan.card, ignore_metadata_errors=True).validate()
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise HubError(f"The Hub refuses the card's metadata, and nothing was uploaded: {reason}") from error


def push(plan: PushPlan, token: str | None = None) -> str:
    """Carry out a plan and give the URL of what it made.

    The whole push is one ``create_commit`` on the commit that the plan was made for, rather than ``upload_folder``,
    which cannot leave a plan's card aside, and with Xet on commits in a way that repeats a commit whose answer got lost.
    Large files go up first; those that arrived are known by their hash and not sent again when the same push is
    run again, and files that the repo has are left out, so that nothing new is no commit.

    Raises:
        HubError: the card is refused, someone else changed the repo meanwhile, or the Hub cannot be reached. The repo is
            as it was then.
    """
    validate(plan, token)
    api, target = client(token), plan.target
    added = [
        CommitOperationAdd(name, plan.card.encode() if name == CARD_FILE else str(plan.folder / name))
        for name, _ in plan.files
    ]
    deleted = [CommitOperationDelete(path) for path in plan.deleted]
    with clear_errors(target.repo_id, revision=target.branch):
        if not target.exists:
            api.create_repo(target.repo_id, private=plan.private or None)
        if target.branch is not None and not target.branch_exists:
            api.create_branch(target.repo_id, branch=target.branch, revision=target.parent, exist_ok=True)
        made = api.create_commit(
            target.repo_id,
            [*added, *deleted],
            commit_message=plan.commit_message,
            revision=target.branch,
            create_pr=plan.create_pr,
            parent_commit=target.parent,
        )
        if target.tag is not None and not plan.create_pr:
            api.create_tag(target.repo_id, tag=target.tag, revision=made.oid)
    if made.pr_url is not None:
        return made.pr_url
    page = f"{endpoint()}/{target.repo_id}"
    return f"{page}/tree/{target.branch or target.tag}" if target.branch or target.tag else page


def push_adapter(
    adapter: NeurosurgeryAdapter,
    repo_id: str,
    *,
    results: Sequence[EvaluationReport] = (),
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
    token: str | None = None,
) -> str:
    """Publish an adapter with its card and give the URL.

    Args:
        adapter: the adapter; its base has to be on the Hub (:func:`rebased`).
        repo_id: ``owner/name``, or ``name`` for the user who is logged in; made when it is missing.
        results: its evaluations.
        private: make a new repo private.
        revision: a branch, made when it is missing, or ``refs/tags/NAME``.
        create_pr: propose it as a pull request.
        commit_message: title of the commit.
        token: instead of the stored login.

    Raises:
        HubError: the Hub or the repo refuses it; the repo is as it was then.
    """
    check_hub_base(adapter.config)
    target = look_up(repo_id, revision=revision, create_pr=create_pr, private=private, token=token)
    with tempfile.TemporaryDirectory(dir=staging_folder()) as name:
        folder = Path(name) / "repo"
        stage(folder, adapter, results, repo_id=target.repo_id, token=token)
        plan = plan_push(folder, target, private=private, create_pr=create_pr, commit_message=commit_message)
        return push(plan, token)


def staging_folder() -> Path:
    """Where what is published is put together: on the disk of the caches, which has room for models."""
    folder = norms_cache().parent / "push"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def stage(
    folder: Path,
    adapter: NeurosurgeryAdapter,
    results: Sequence[EvaluationReport],
    *,
    repo_id: str,
    base: BaseModel | None = None,
    baked: bool = False,
    with_adapter: bool = False,
    with_peft: bool = False,
    token: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Put together what is published, card included. The same input gives the same bytes.

    Args:
        folder: folder to write.
        adapter: the edit, at the scale to publish.
        results: its evaluations.
        repo_id: the repo that the card tells people to load.
        base: the base; needed to bake and for PEFT.
        baked: the edited checkpoint, not the adapter.
        with_adapter: with ``baked``, the adapter beside the checkpoint.
        with_peft: also the edit as a PEFT adapter.
        token: instead of the stored login.
        on_progress: called with (files baked, files in all).
    """
    card = base_card(adapter.config, token)
    if baked and base is not None:
        bake(
            base,
            adapter,
            folder,
            finish=lambda aside: write_baked_card(
                adapter, adapter.scale, aside, results, name=repo_id, base_card=card, with_adapter=with_adapter
            ),
            on_progress=on_progress,
        )
    else:
        folder.mkdir()
        adapter.write_to(folder)
        write_card(folder, adapter, results, name=repo_id, base_card=card)
    if with_peft and base is not None:
        export_peft(adapter, base, folder / PEFT_FOLDER)


def check_hub_base(config: NeurosurgeryConfig) -> None:
    """Refuse an adapter whose base nobody else could load.

    Raises:
        HubError
    """
    check_base_is_public(config.base_model_name_or_path, config.revision)


def check_base_is_public(name: str, revision: str | None) -> None:
    """The same for a base by name; ``revision`` is its commit on the Hub, where it has one."""
    if revision is None or not is_hub_id(name):
        raise HubError(
            f"The base {name!r} is not on the Hub, and the card has to name one that is; give the Hub id of the same "
            "model (--base-id ORG/BASE)."
        )


def rebased(adapter: NeurosurgeryAdapter, base_id: str, token: str | None = None) -> NeurosurgeryAdapter:
    """The adapter with ``base_id`` as its base, whose values are fetched and compared.

    Raises:
        SettingError: ``base_id`` is a folder.
        BaseMismatchError: it is another model.
        ModelError: it cannot be had.
    """
    base = find_base(base_id, token=token)
    if base.repo_id is None or base.revision is None:
        raise SettingError(f"{base_id} is a folder here, not a model on the Hub; give the id of one (--base-id).")
    adapter.check_base(base.weights, base.coverage(adapter.config.include_lm_head))
    config = replace(
        adapter.config,
        base_model_name_or_path=base.repo_id,
        revision=base.revision,
        base_fingerprint=base.fingerprint,
    )
    return replace(adapter, config=config)


def base_card(config: NeurosurgeryConfig, token: str | None = None) -> str | None:
    """Text of the base's card on the Hub at the recorded revision, if it has one.

    Raises:
        HubError: the base cannot be reached.
    """
    folder = fetch(config.base_model_name_or_path, "model", revision=config.revision, patterns=[CARD_FILE], token=token)
    path = folder / CARD_FILE
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


@dataclass(frozen=True)
class Listing:
    """A published edit.

    Attributes:
        repo_id: its Hub id.
        kind: ``adapter`` or ``model`` (baked).
        downloads: in the last 30 days, as the Hub counts.
        modified: last change.
        private: whether only this login and its team see it.
    """

    repo_id: str
    kind: str
    downloads: int
    modified: datetime | None
    private: bool


def find_adapters(
    base_model: str, *, sort: Sort = "downloads", limit: int = 100, token: str | None = None
) -> list[Listing]:
    """What is published for a base, by the Hub's tags: most downloaded, or most recently changed, first.

    Raises:
        HubError: the Hub cannot be reached.
    """
    order: Literal["downloads", "last_modified"] = "downloads" if sort == "downloads" else "last_modified"
    with clear_errors(base_model, "model"):
        found = client(token).list_models(filter=[f"base_model:{base_model}", TAG], sort=order, limit=limit, full=True)
        return [
            Listing(
                repo_id=info.id,
                kind="adapter" if f"base_model:adapter:{base_model}" in (info.tags or ()) else "model",
                downloads=info.downloads or 0,
                modified=info.last_modified,
                private=bool(info.private),
            )
            for info in found
        ]
