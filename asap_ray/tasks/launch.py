"""`task=launch`: write what runs this command on a cluster, rendered from the very words that would run it here.

Nothing is started. The files lie in the run directory, with a script or a manifest to hand to the cluster's own tool.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from asap_ray import __version__
from asap_ray.config import Config
from asap_ray.drafts import write_whole
from asap_ray.errors import ConfigError
from asap_ray.hardware import Slice, parse_slice
from asap_ray.launch import kuberay, scripts
from asap_ray.launch.job import RUN, Group, LaunchJob, run_script
from asap_ray.report.outline import Block
from asap_ray.tasks.machine import LOCAL
from asap_ray.tasks.measuring import gang_of
from asap_ray.tasks.running import tell, write_files
from asap_ray.tasks.setting import load_chips
from asap_ray.tasks.shipping import INPUTS, constraints, shipped_words, unpacked, wheel_of

JOB = "job"
NEXT: Mapping[str, tuple[str, ...]] = {
    "local": ("bash {folder}/job/run.sh",),
    "ray_job": ("bash {folder}/submit.sh",),
    "slurm": ("cd {folder} && sbatch job.sbatch",),
    "kuberay": (
        "cd {folder} && podman build -t {image} -f Containerfile . && podman push {image}",
        "kubectl apply -f {folder}/command.yaml && kubectl create -f {folder}/rayjob.yaml",
    ),
    "gce_tpu": ("bash {folder}/launch.sh",),
}
"""What to type, by target."""
SCHEDULED = "kubectl apply -f {folder}/cronjob.yaml"
LOST = "the run directory goes with the pods: launch.storage=CLAIM keeps it, and takes a run up where it was"
RESULTS: Mapping[str, str] = {"kuberay": "/results", "gce_tpu": "/tmp/asap_ray_results"}
"""The run directory there, where nobody says otherwise; for others it lies beside the files or at home."""


def run(config: Config) -> int:
    """Run the task; returns the exit status.

    Raises:
        AsapError: something for the user to change.
    """
    folder = config.run_path / "launch"
    groups = tuple(_groups(config))
    words, inputs = shipped_words(config)

    def write() -> tuple[LaunchJob, list[Path]]:
        if folder.exists():
            shutil.rmtree(folder)  # of an earlier command: what it shipped is not this one's
        folder.mkdir(parents=True)
        wheel = wheel_of(config, folder)
        job = _job(config, words, inputs, groups, wheel, folder)
        return job, [_written(folder, path, text) for path, text in _files(job, config.launch.target, wheel)]

    job, paths = write_files(config, write)
    names = {"folder": shlex.quote(str(folder)), "image": shlex.quote(job.image)}
    commands = [line.format(**names) for line in (*NEXT[config.launch.target], *([SCHEDULED] if job.schedule else []))]
    told = [str(path) for path in paths if "asap_ray" not in path.relative_to(folder).parts]
    size = sum(path.stat().st_size for path in (folder / JOB).rglob("*") if path.is_file())
    fields = {"task": config.task, "target": config.launch.target, "files": told, "commands": commands, "bytes": size}
    loses = config.launch.target == "kuberay" and job.storage is None
    tell(config, fields, _outline(job, told, commands, size, LOST if loses else ""))
    return 0


def _groups(config: Config) -> Iterator[Group]:
    """The slices that trials run on, each as often as it is to be there; none where plans are only compiled."""
    if not config.measures:
        return
    chips = load_chips(config)
    for name in config.hardware.slices:
        if name == LOCAL:
            continue
        slice_ = parse_slice(name, chips)
        yield _group(config, slice_)


def _group(config: Config, slice_: Slice) -> Group:
    gang = gang_of(slice_)
    (chips,) = gang.per_host.values()
    tpu = bool(gang.topology)
    count = slice_.slices if tpu else 1  # GPUs are hosts alone, however many domains they make
    return Group(
        name=re.sub(r"[^a-z0-9]+", "-", slice_.name.lower()).strip("-"),
        chip=slice_.chip,
        count=count * config.launch.replicas,
        hosts=gang.hosts // count,
        chips=int(chips),
        topology=gang.topology,
    )


def _job(
    config: Config,
    words: tuple[str, ...],
    inputs: Mapping[str, bytes],
    groups: tuple[Group, ...],
    wheel: Path,
    folder: Path,
) -> LaunchJob:
    asked = config.launch
    return LaunchJob(
        name=asked.name or _name(config),
        version=__version__,
        words=words,
        inputs=inputs,
        groups=groups,
        image=asked.image or f"asap-ray:{__version__}",
        wheel=wheel.name,
        extras=tuple(_extras(config, groups)),
        ray=version("ray"),
        python=".".join(platform.python_version_tuple()[:2]),
        cpus=asked.cpus,
        memory_gb=asked.memory_gb,
        hours=asked.hours,
        results=asked.results or RESULTS.get(asked.target) or _results(asked.target, folder),
        schedule=asked.schedule,
        time_zone=asked.time_zone,
        storage=asked.storage,
        ray_address=("local" if asked.target == "local" else "auto") if _has_trials(config.asked) else "",
        address=asked.address,
        options=tuple(asked.options),
        project=asked.project or "",
        zone=asked.zone or "",
    )


def _has_trials(asked: Config) -> bool:
    """Whether a command may need Ray: the others refuse an address of it."""
    return asked.may_compile or asked.measures


def _results(target: str, folder: Path) -> str:
    # A job's own folder on a Ray cluster is taken away; on a file system that is shared, or here, files stay beside.
    return f"/tmp/asap_ray/{folder.parent.name}" if target == "ray_job" else str(folder / "results")


def _name(config: Config) -> str:
    """A name that every cluster takes: small letters, digits and dashes, 40 at most."""
    subject = config.model_name if config.model else config.launch.task
    text = re.sub(r"[^a-z0-9]+", "-", f"asap-{subject}-{config.hardware.slices[0]}".lower())
    return text[:40].strip("-")


def _extras(config: Config, groups: tuple[Group, ...]) -> Iterator[str]:
    """The compilers that the command may use there."""
    chips = load_chips(config)
    vendors = {each.chip.vendor for each in groups}
    vendors |= {parse_slice(name, chips).chip.vendor for name in config.hardware.slices if name != LOCAL}
    yield from ("tpu" for vendor in vendors if vendor == "google")
    yield from ("cuda" for vendor in vendors if vendor == "nvidia")


def _files(job: LaunchJob, target: str, wheel: Path) -> Iterator[tuple[str, str | bytes]]:
    """All files of a target by their paths."""
    yield f"{JOB}/{RUN}", run_script(job)
    yield from ((f"{JOB}/{INPUTS}/{path}", data) for path, data in job.inputs.items())
    yield "constraints.txt", constraints()
    if target == "ray_job":
        yield from ((f"{JOB}/{path}", data) for path, data in unpacked(wheel))
        yield "submit.sh", scripts.ray_job(job)
    elif target == "slurm":
        yield "job.sbatch", scripts.slurm(job)
    elif target == "kuberay":
        yield "Containerfile", scripts.containerfile(job)
        yield from kuberay.manifests(job).items()
    elif target == "gce_tpu":
        if not job.groups:
            raise ConfigError("tiers", "auto", "[roofline,run] or [roofline,command]: compiling takes no TPU VM")
        yield from scripts.gce_tpu(job).items()


def _written(folder: Path, path: str, content: str | bytes) -> Path:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        place.write_bytes(content)
        return place
    return write_whole(place, content)


def _outline(job: LaunchJob, paths: list[str], commands: list[str], size: int, note: str) -> Iterator[Block]:
    groups = tuple((each.name, f"{each.count} x {each.hosts} hosts with {each.chips} chips") for each in job.groups)
    yield Block(title=job.name, facts=(("runs", " ".join(("python -m asap_ray", *job.words))), *groups))
    yield Block(title=f"Files, {size / 1e3:,.0f} kB in {JOB}/", facts=tuple(("", path) for path in paths))
    yield Block(title="Next", facts=tuple(("", each) for each in commands))
    if note:
        yield Block(facts=(("note", note),))
