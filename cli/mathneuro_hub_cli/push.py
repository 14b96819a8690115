"""``mathneuro surgery push``: make what is missing, show the plan, publish."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mathneuro_hub_cli import options
from mathneuro_hub_cli.making import AdapterMaker
from mathneuro_hub_cli.options import Method
from mathneuro_hub_cli.output import Format, Output, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from mathneuro_hub.adapter import NeurosurgeryAdapter
    from mathneuro_hub.base_model import BaseModel
    from mathneuro_hub.calibration import ActivationNorms
    from mathneuro_hub.evaluation import EvaluationReport
    from mathneuro_hub.publishing.hub import PushPlan

_CONTRASTS = ("race", "mmlu")


def push(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Base model to make the adapter on: a Hub id or a folder.")
    ] = None,
    adapter: Annotated[
        str | None, typer.Option("--adapter", "-a", help="Publish this adapter, a folder or Hub id, not a new one.")
    ] = None,
    repo_id: Annotated[
        str | None, typer.Option("--repo-id", help="Where to: TEAM/NAME.", show_default="YOU/BASE-mathneuro")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Recommended scale.", show_default="1.1, or the adapter's own")
    ] = None,
    skill: Annotated[
        str, typer.Option(help="A norms file, or a data set as in `mathneuro calibrate --data`.")
    ] = "gsm8k",
    contrast: Annotated[
        list[str] | None, typer.Option(help="Likewise; repeat for several.", show_default="race and mmlu")
    ] = None,
    keep_ratio: options.KeepRatio = 0.05,
    contrast_keep_ratio: options.ContrastKeepRatio = None,
    method: options.MethodChoice = Method.mathneuro,
    num_samples: options.NumSamples = None,
    seed: options.Seed = 0,
    replacement: options.Replacement = False,
    chat_template: options.ChatTemplate = False,
    max_length: options.MaxLength = None,
    include_lm_head: options.IncludeLmHead = False,
    no_eval: Annotated[bool, typer.Option("--no-eval", help="Publish without evaluation, and say so.")] = False,
    tasks: Annotated[str, typer.Option("--tasks", "-t", help="lm-eval tasks, separated by commas.")] = "gsm8k_cot,race",
    limit: Annotated[int, typer.Option(min=0, help="Only the first questions of each task; 0 for all.")] = 200,
    control: Annotated[bool, typer.Option("--control", help="Score a random mask of the same size too.")] = False,
    batch_size: Annotated[int, typer.Option(help="Samples, and questions, per forward pass.")] = 8,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Neither re-use nor keep activation norms and evaluations.")
    ] = False,
    model_revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the base on the Hub.")] = None,
    base_id: Annotated[
        str | None, typer.Option(help="Hub id of the base, where it was a folder; its values are compared.")
    ] = None,
    baked: Annotated[
        bool, typer.Option("--baked", help="Publish the edited model; with --adapter, the adapter beside it.")
    ] = False,
    with_norms: Annotated[bool, typer.Option("--with-norms", help="Add the activation norms.")] = False,
    with_peft: Annotated[bool, typer.Option("--with-peft", help="Add the edit for plain PEFT, in peft/.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make the repo private.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="Branch to push to, made when missing; refs/tags/NAME to tag the commit.")
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Propose it as a pull request.")] = False,
    commit_message: Annotated[str | None, typer.Option(help="Title of the commit.", show_default=False)] = None,
    token: options.Token = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show every file and the card; publish nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Publish without asking.")] = False,
    form: options.OutputFormat = Format.human,
) -> None:
    """Publish an adapter or an edited model on the Hub, and make first what is missing of it.

    With --model: calibrates, computes the masks and evaluates; what was finished before is found again.
    With --adapter: evaluates, unless the folder has results at its scale.

    Example: mathneuro surgery push --model org/base --scale 1.1 --repo-id team/base-mathneuro
    """
    from mathneuro_hub.adapter import NeurosurgeryAdapter
    from mathneuro_hub.adapter.config import check_scale
    from mathneuro_hub.adapter.location import find_adapter
    from mathneuro_hub.base_model import find_base
    from mathneuro_hub.errors import SettingError
    from mathneuro_hub.evaluation.report import RESULTS_FILE, load_reports
    from mathneuro_hub.publishing import hub
    from mathneuro_hub.publishing.target import look_up

    out = Output(form)
    if model is None and adapter is None:
        raise SettingError("There is nothing to publish; give a base model (--model) or an adapter (--adapter).")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise SettingError("Nobody is at the terminal to confirm; add --yes to publish, or --dry-run to look first.")
    check_scale(1.1 if scale is None else scale)
    maker = AdapterMaker(
        skill=skill,
        contrasts=tuple(contrast or _CONTRASTS),
        keep_ratio=keep_ratio,
        contrast_keep_ratio=contrast_keep_ratio,
        scale=1.1 if scale is None else scale,
        method=method.value,
        num_samples=num_samples,
        seed=seed,
        replacement=replacement,
        chat_template=chat_template,
        max_length=max_length,
        batch_size=batch_size,
        include_lm_head=include_lm_head,
        dtype=dtype,
        device=device,
        device_map=device_map,
        use_cache=not no_cache,
    )
    source: Path | None = None
    given: NeurosurgeryAdapter | None = None
    base: BaseModel | None = None
    if adapter is not None:
        source = find_adapter(adapter, token=token, patterns=None)
        given = NeurosurgeryAdapter.from_pretrained(source)
        given = given if scale is None else given.with_scale(scale)
        if base_id is None:
            hub.check_hub_base(given.config)
        base_name = base_id or given.config.base_model_name_or_path
    else:
        maker.check()
        base = find_base(str(model), model_revision, token=token)
        if base_id is None:
            hub.check_base_is_public(base.public_name, base.revision)
        base_name = base_id or base.public_name
    default = re.sub(r"[^\w.-]+", "-", base_name.rpartition("/")[2]) + "-mathneuro"
    target = look_up(repo_id or default, revision=revision, create_pr=create_pr, private=private, token=token)

    norms: Sequence[ActivationNorms] = ()
    loaded: PreTrainedModel | None = None
    results: list[EvaluationReport] = []
    if given is None:
        assert base is not None
        made = maker.make(base, out)
        finished, norms = made.adapter, made.norms
        loaded = made.calibrator.model if "model" in made.calibrator.__dict__ else None
    else:
        finished = given
        if source is not None and (source / RESULTS_FILE).is_file():
            results = load_reports(source / RESULTS_FILE)
    if base_id is not None:
        finished = hub.rebased(finished, base_id, token)

    def whole_base() -> BaseModel:
        return base or finished.find_base(model, model_revision, token=token)

    if not no_eval and all(report.scale != finished.scale for report in results):
        from mathneuro_hub.evaluation.paired import PairedEvaluation

        names = [name.strip() for name in tasks.split(",") if name.strip()]
        results.append(
            PairedEvaluation(
                names,
                include_path=options.bundled_tasks(names),
                limit=limit or None,
                batch_size=batch_size,
                control=control,
                dtype=dtype,
                device=device,
                device_map=device_map,
                use_cache=not no_cache,
            ).run(
                whole_base(),
                finished,
                model=loaded,
                report=lambda what, done, total: out.progress(f"Evaluating {what}", done, total, "questions"),
            )
        )
    with tempfile.TemporaryDirectory(dir=hub.staging_folder()) as name:
        folder = Path(name) / "repo"
        hub.stage(
            folder,
            finished,
            results,
            repo_id=target.repo_id,
            base=whole_base() if baked or with_peft else None,
            baked=baked,
            with_adapter=adapter is not None,
            with_peft=with_peft,
            token=token,
            on_progress=lambda done, total: out.progress("Baking", done, total, "files"),
        )
        if with_norms:
            _add_norms(folder / hub.NORMS_FOLDER, norms, source)
        plan = hub.plan_push(
            folder,
            target,
            private=private,
            create_pr=create_pr,
            commit_message=commit_message,
            source=None if baked else source,
        )
        data = _data(plan)
        if dry_run:
            hub.validate(plan, token)
            out.result(
                data | {"url": None, "card": plan.card}, human=f"{describe(plan)}\n\n{plan.card}", quiet=target.repo_id
            )
            return
        out.note(describe(plan))
        if not yes and not typer.confirm("Publish this?", err=True):
            out.note("Nothing was published.")
            raise typer.Exit(1)
        url = hub.push(plan, token)
    out.result(data | {"url": url}, human=f"Published {url}", quiet=url)


def _add_norms(folder: Path, norms: Sequence[ActivationNorms], source: Path | None) -> None:
    from mathneuro_hub.errors import SettingError

    if source is not None:
        if not (source / folder.name).is_dir():
            raise SettingError(f"{source} holds no activation norms ({folder.name}/); push with --model to have them.")
        shutil.copytree(source / folder.name, folder)
    for part in norms:
        path = folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', part.name).strip('-.') or 'norms'}.safetensors"
        while path.exists():
            path = path.with_stem(f"{path.stem}-2")
        part.save(path)


def _data(plan: PushPlan) -> dict[str, object]:
    return {
        "repo_id": plan.target.repo_id,
        "revision": plan.target.branch or plan.target.tag or "main",
        "new": not plan.target.exists,
        "private": plan.private or plan.target.private,
        "pull_request": plan.create_pr,
        "commit_message": plan.commit_message,
        "files": [{"path": path, "size": size} for path, size in plan.files],
        "deleted": list(plan.deleted),
        "bytes": plan.bytes,
    }


def describe(plan: PushPlan) -> str:
    """The plan for a person."""
    target = plan.target
    kind = "private" if plan.private or target.private else "public"
    where = f"{target.repo_id} ({'new, ' if not target.exists else ''}{kind})"
    if target.branch is not None:
        where += f", {'new ' if not target.branch_exists else ''}branch {target.branch}"
    if target.tag is not None:
        where += f", tagged {target.tag}"
    verb = "Propose to" if plan.create_pr else "Publish to"
    lines = [f"{verb} {where}, as one commit: {plan.commit_message}", ""]
    lines.append(
        table(("file", "bytes"), [*((path, f"{size:,}") for path, size in plan.files), ("", f"{plan.bytes:,}")])
    )
    lines += [f"deleted: {path}" for path in plan.deleted]
    return "\n".join(lines)
