"""Scripts and files of the other targets: Slurm, `ray job submit`, Ray's cluster launcher on TPU VMs, a container."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from asap_ray.errors import ConfigError
from asap_ray.launch.job import RESULTS, RUN, Group, LaunchJob
from asap_ray.launch.names import tpu_names

PORT = 6379
HEAD = "head.sh"
READY_S = 600
"""How long nodes may take to join."""


def containerfile(job: LaunchJob) -> str:
    """An image with the wheel and all that it needs, in the versions of this machine (constraints.txt)."""
    extras = f"[{','.join(job.extras)}]" if job.extras else ""
    tag = job.python.replace(".", "")
    return f"""# asap_ray {job.version}, written by task=launch
# podman build -t {job.image} -f Containerfile . && podman push {job.image}
FROM docker.io/rayproject/ray:{job.ray}-py{tag}
COPY {job.wheel} constraints.txt /tmp/asap_ray/
RUN python -m pip install --no-cache-dir -c /tmp/asap_ray/constraints.txt "/tmp/asap_ray/{job.wheel}{extras}"
"""


def ray_job(job: LaunchJob) -> str:
    """`ray job submit` of the folder `job/`: the wheel's contents, the command, the user's files. No two ids are alike,
    since Ray refuses one that it has seen."""
    return f"""#!/usr/bin/env bash
# asap_ray {job.version}, written by task=launch. What job/ needs must be installed on the cluster: see constraints.txt.
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
address=${{RAY_API_SERVER_ADDRESS:-{shlex.quote(job.address)}}}
id={shlex.quote(job.name)}-$(date -u +%Y%m%d-%H%M%S)-$$
echo "submitting $id, $(du -sh job | cut -f1), to $address" >&2
exec ray job submit --address "$address" --submission-id "$id" --working-dir job "$@" -- bash {RUN}
"""


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
    return _SLURM.format(version=job.version, head=head, port=PORT, ready=READY_S, run=RUN)


_SLURM = """#!/usr/bin/env bash
# asap_ray {version}, written by task=launch. Submit it from this folder, which all nodes must see: sbatch job.sbatch
{head}
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${{nodes[0]}}
ip=$(srun --nodes=1 --ntasks=1 -w "$head" hostname -I | awk '{{print $1}}')
port=$(({port} + SLURM_JOB_ID % 1000)) # another job's Ray may be on the same node
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n') # whoever has it may run anything on these nodes
export RAY_AUTH_TOKEN

started=()
finish() {{ # Ray runs in steps of this job alone: `ray stop` would end that of others too
    if ((${{#started[@]}})); then kill "${{started[@]}}" 2> /dev/null || true; fi
    wait
}}
trap finish EXIT

srun --overlap --nodes=1 --ntasks=1 -w "$head" \\
    ray start --head --block --node-ip-address="$ip" --port="$port" --include-dashboard=false \\
    --num-cpus="$SLURM_CPUS_PER_TASK" --temp-dir="/tmp/ray_$SLURM_JOB_ID" &
started+=($!)
for node in "${{nodes[@]:1}}"; do
    srun --overlap --nodes=1 --ntasks=1 -w "$node" \\
        ray start --block --address="$ip:$port" --num-cpus="$SLURM_CPUS_PER_TASK" &
    started+=($!)
done

export RAY_ADDRESS="$ip:$port"
count='import ray; ray.init(log_to_driver=False, logging_level=40); print(sum(n["Alive"] for n in ray.nodes()))'
for ((waited = 0; ; waited += 5)); do
    joined=$(srun --overlap --nodes=1 --ntasks=1 -w "$head" python -c "$count" 2> /dev/null || echo 0)
    if ((joined >= ${{#nodes[@]}})); then break; fi
    if ((waited >= {ready})); then
        echo "only $joined of ${{#nodes[@]}} nodes have joined Ray after {ready} s" >&2
        exit 1
    fi
    sleep 5
done
srun --overlap --nodes=1 --ntasks=1 -w "$head" bash job/{run}
"""


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
    return {"cluster.yaml": text, "launch.sh": _gce_script(job), f"job/{HEAD}": _head_script(job)}


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


def _gce_script(job: LaunchJob) -> str:
    return f"""#!/usr/bin/env bash
# asap_ray {job.version}, written by task=launch: starts the cluster, runs the command on its head, fetches what it
# found, and gives all back however it ends. The deadline ends the command, and with it the bill.
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
finish() {{
    ray rsync-down cluster.yaml {shlex.quote(job.results + "/")} results/ || true
    ray down --yes cluster.yaml
}}
trap finish EXIT
ray up --yes --no-config-cache cluster.yaml
ray exec cluster.yaml 'bash /tmp/asap_ray/job/{HEAD}'
"""


def _head_script(job: LaunchJob) -> str:
    return f"""#!/usr/bin/env bash
# asap_ray {job.version}, written by task=launch: what the head runs.
set -euo pipefail
RAY_ADDRESS="$(hostname -I | awk '{{print $1}}'):{PORT}"
export RAY_ADDRESS {RESULTS}={shlex.quote(job.results)}
exec timeout {job.seconds} bash "$(dirname "${{BASH_SOURCE[0]}}")/{RUN}"
"""
