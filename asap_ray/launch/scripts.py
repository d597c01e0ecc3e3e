"""Scripts and files of the other targets: Slurm, `ray job submit`, Ray's cluster launcher on TPU VMs, a container."""

from __future__ import annotations

from typing import Any

import yaml

from asap_ray.errors import ConfigError
from asap_ray.launch.job import RESULTS, RUN, Group, LaunchJob
from asap_ray.launch.names import tpu_names
from asap_ray.launch.templates import filled

PORT = 6379
HEAD = "head.sh"
READY_S = 600
"""How long nodes may take to join."""


def containerfile(job: LaunchJob) -> str:
    """An image with the wheel and all that it needs, in the versions of this machine (constraints.txt)."""
    return filled(
        "Containerfile",
        version=job.version,
        image=job.image,
        ray=job.ray,
        python=job.python.replace(".", ""),
        wheel=job.wheel,
        extras=f"[{','.join(job.extras)}]" if job.extras else "",
    )


def ray_job(job: LaunchJob) -> str:
    """`ray job submit` of the folder `job/`: the wheel's contents, the command, the user's files. No two ids are alike,
    since Ray refuses one that it has seen."""
    return filled("submit.sh", version=job.version, address=job.address, name=job.name, run=RUN)


def slurm(job: LaunchJob) -> str:
    """A batch script that starts Ray on the nodes that Slurm gives, runs the command on the first, and ends with it."""
    gpus = max((each.chips for each in job.groups), default=0)
    if any(each.is_tpu for each in job.groups):
        raise ConfigError("launch.target", "slurm", "for GPUs and processors; TPU slices take kuberay or gce_tpu")
    hours, minutes = divmod(max(1, round(job.hours * 60)), 60)
    options = [
        f"--job-name={job.name}",
        f"--nodes={max(job.hosts, 1)}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={job.cpus}",
        f"--mem={job.memory_gb}G",
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        f"--time={hours:02d}:{minutes:02d}:00",
        "--output=%x-%j.log",
        *job.options,
    ]
    head = "\n".join(f"#SBATCH {each}" for each in options)
    return filled("job.sbatch", version=job.version, options=head, port=PORT, ready_s=READY_S, run=RUN)


def gce_tpu(job: LaunchJob) -> dict[str, str]:
    """Ray's cluster launcher on TPU VMs: a head that runs the command, and slices as workers; and what to type.

    Raises:
        ConfigError: Google Cloud has no such TPU VMs.
    """
    types: dict[str, Any] = {
        "head": {
            "resources": {"CPU": job.cpus},
            "node_config": {
                "machineType": f"n2-standard-{_machine(job.cpus)}",
                "disks": [
                    {
                        "boot": True,
                        "autoDelete": True,
                        "type": "PERSISTENT",
                        "initializeParams": {
                            "diskSizeGb": 200,
                            "sourceImage": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts",
                        },
                    }
                ],
            },
        },
        **{each.name: _tpu_node(each) for each in job.groups},
    }
    wheel = f"/tmp/asap_ray/{job.wheel}"
    extras = f"[{','.join(job.extras)}]" if job.extras else ""
    given = {
        "cluster_name": job.name,
        "max_workers": sum(each.count for each in job.groups),
        "provider": {
            "type": "gcp",
            "region": job.zone.rpartition("-")[0],
            "availability_zone": job.zone,
            "project_id": job.project,
        },
        "auth": {"ssh_user": "ubuntu"},
        "head_node_type": "head",
        "available_node_types": types,
        "file_mounts": {"/tmp/asap_ray": "."},
        "setup_commands": [
            "sudo apt-get update -q && sudo apt-get install -qy python3-pip python3-venv",
            "python3 -m venv ~/asap_ray",
            f'~/asap_ray/bin/pip install -q -c /tmp/asap_ray/constraints.txt "{wheel}{extras}"',
            "echo 'export PATH=$HOME/asap_ray/bin:$PATH' >> ~/.bashrc",
        ],
        "head_start_ray_commands": [
            "ray stop",
            f"ray start --head --port={PORT} --autoscaling-config=~/ray_bootstrap_config.yaml",
        ],
        "worker_start_ray_commands": ["ray stop", f"ray start --address=$RAY_HEAD_IP:{PORT}"],
    }
    text = f"# asap_ray {job.version}, written by task=launch: bash launch.sh\n" + yaml.safe_dump(
        given, sort_keys=False, width=150
    )
    script = filled("launch.sh", version=job.version, results=job.results, head=HEAD)
    head = filled(
        "head.sh",
        version=job.version,
        port=PORT,
        results_variable=RESULTS,
        results=job.results,
        seconds=job.seconds,
        run=RUN,
    )
    return {"cluster.yaml": text, "launch.sh": script, f"job/{HEAD}": head}


def _machine(cpus: int) -> int:
    """The n2-standard machine that has so many cores."""
    return next(size for size in (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, cpus) if size >= cpus)


def _tpu_node(group: Group) -> dict[str, Any]:
    if not group.is_tpu:
        raise ConfigError("launch.target", "gce_tpu", "for TPU slices; GPUs take kuberay, slurm or ray_job")
    names, chip = tpu_names(group.chip), group.chip
    number = group.hosts * group.chips * (chip.cores_per_chip if names.counts_cores else 1)
    return {
        "min_workers": group.count,
        "max_workers": group.count,
        "resources": {"TPU": group.chips},
        "node_config": {"acceleratorType": f"{names.vm}-{number}", "runtimeVersion": names.runtime},
    }
