"""Manifests for KubeRay 1.6 and later: a RayJob, and where a schedule is given a RayCronJob and a plain CronJob.

A failed driver is not run again by Kubernetes: both back-off limits are 0, since the same job again takes the run up
where it was, and three copies of a command that a user must change help nobody (kuberay issues 2376 and 2058). Fields
are those of KubeRay 1.7's API reference, which has neither history limits nor a policy for runs that overlap in
RayCronJobSpec: the plain CronJob has both, and nightly runs hold a lock of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from asap_ray.errors import ConfigError
from asap_ray.launch.job import RESULTS, RUN, Group, LaunchJob, run_script
from asap_ray.launch.names import GPUS, tpu_names

PLACE = "/opt/asap_ray/job"
"""Where the command and the user's files are in a pod."""
MOST_BYTES = 900_000
"""A ConfigMap holds 1 MiB."""
TTL_S = 600
PENDING_S = 1800
"""How long pods may wait for nodes before the job is given up: slices that never come would be waited for else."""
KEPT = 3
GROUP = 100
"""The group of the user that Ray's images run as: what it must be able to write to is given to it."""
KUBECTL = "registry.k8s.io/kubectl:v1.34.1"
Doc = dict[str, Any]


def manifests(job: LaunchJob) -> dict[str, str]:
    """The files by name: the command, the job that reads it, and with a schedule both ways to run it by the clock.

    Raises:
        ConfigError: the user's files are too large, or a chip has no name on Google Cloud.
    """
    spec = _job_spec(job)
    one = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": _meta(job, name=None), "spec": spec}
    found = {"command.yaml": _text([_command(job)]), "rayjob.yaml": _text([one])}
    if job.schedule is not None:
        found["raycronjob.yaml"] = _text([_command(job), _ray_cron(job, spec)])
        found["cronjob.yaml"] = _text([_command(job), *_cron(job, one)])
    return found


def _text(documents: list[Doc]) -> str:
    return "".join(f"---\n{yaml.safe_dump(each, sort_keys=False, width=110)}" for each in documents)


def _meta(job: LaunchJob, name: str | None = "") -> Doc:
    """Of an object with the job's name, or one that has a new name each time it is made (None)."""
    named = {"generateName": f"{job.name}-"} if name is None else {"name": f"{job.name}{name}"}
    return {**named, "labels": {"app.kubernetes.io/name": "asap-ray", "app.kubernetes.io/instance": job.name}}


def _files(job: LaunchJob) -> dict[str, bytes]:
    return {RUN: run_script(job).encode(), **{f"inputs/{path}": data for path, data in job.inputs.items()}}


def _command(job: LaunchJob) -> Doc:
    """The command and the user's files, which pods find in their folder."""
    files = _files(job)
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        text = f"files of {MOST_BYTES:,} bytes together, and these are {size:,}: put them into the image"
        raise ConfigError("launch", ", ".join(job.inputs), text)
    try:
        data = {_key(place): content.decode() for place, content in enumerate(files.values())}
    except UnicodeDecodeError as error:
        raise ConfigError("launch", ", ".join(job.inputs), "text files; put others into the image") from error
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(job, "-command"), "data": data}


def _key(place: int) -> str:
    """The name of a file in the ConfigMap, which takes few characters: the first is the command."""
    return f"file-{place}"


def _job_spec(job: LaunchJob) -> Doc:
    return {
        "entrypoint": f"bash {PLACE}/{RUN}",
        "submissionMode": "K8sJobMode",
        "backoffLimit": 0,
        "submitterConfig": {"backoffLimit": 0},
        "activeDeadlineSeconds": job.seconds,
        "preRunningDeadlineSeconds": min(PENDING_S, job.seconds),
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": TTL_S,
        "rayClusterSpec": {
            "rayVersion": job.ray,
            "authOptions": {"mode": "token"},
            "headGroupSpec": _head(job),
            "workerGroupSpecs": [_workers(job, each) for each in job.groups],
        },
    }


def _head(job: LaunchJob) -> Doc:
    """The head runs the command, and what is compiled."""
    resources = {"cpu": str(job.cpus), "memory": f"{job.memory_gb}Gi"}
    claim = {"persistentVolumeClaim": {"claimName": job.storage}} if job.storage else {"emptyDir": {}}
    container = {
        "name": "ray-head",
        "image": job.image,
        "env": [{"name": RESULTS, "value": job.results}],
        "ports": [
            {"containerPort": port, "name": name}
            for port, name in ((6379, "gcs"), (8265, "dashboard"), (10001, "client"))
        ],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [
            {"name": "command", "mountPath": PLACE, "readOnly": True},
            {"name": "results", "mountPath": job.results},
        ],
    }
    items = [{"key": _key(place), "path": path} for place, path in enumerate(_files(job))]
    volumes = [
        {"name": "command", "configMap": {"name": f"{job.name}-command", "items": items}},
        {"name": "results", **claim},
    ]
    spec = {"containers": [container], "volumes": volumes, "securityContext": {"fsGroup": GROUP}}
    return {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": {"spec": spec}}


def _workers(job: LaunchJob, group: Group) -> Doc:
    """One replica is one TPU slice, of as many pods as it has hosts; or one host with GPUs."""
    chips = {"google.com/tpu" if group.is_tpu else "nvidia.com/gpu": str(group.chips)}
    resources = {"cpu": "4", "memory": "32Gi", **chips}
    container: Doc = {
        "name": "ray-worker",
        "image": job.image,
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if group.is_tpu:
        container["ports"] = [{"containerPort": 8081, "name": "mxla"}]
        container["env"] = [{"name": "JAX_PLATFORMS", "value": "tpu,cpu"}]
    spec: Doc = {
        "nodeSelector": dict(_selectors(group)),
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
    }
    if not group.is_tpu:
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    count = group.count if group.is_tpu else group.count * group.hosts
    return {
        "groupName": group.name,
        "replicas": count,
        "minReplicas": count,
        "maxReplicas": count,
        "numOfHosts": group.hosts if group.is_tpu else 1,
        "rayStartParams": {},
        "template": {"spec": spec},
    }


def _selectors(group: Group) -> Iterator[tuple[str, str]]:
    if group.is_tpu:
        yield "cloud.google.com/gke-tpu-accelerator", tpu_names(group.chip).gke
        yield "cloud.google.com/gke-tpu-topology", group.topology
    elif group.chip.name in GPUS:  # a cluster elsewhere is asked for its GPUs by number alone
        yield "cloud.google.com/gke-accelerator", GPUS[group.chip.name]


def _ray_cron(job: LaunchJob, spec: Doc) -> Doc:
    """By KubeRay's own clock, behind its feature gate RayCronJob (alpha, off unless asked for)."""
    given = {"schedule": job.schedule, "jobTemplate": spec}
    if job.time_zone:
        given = {"timeZone": job.time_zone, **given}
    return {"apiVersion": "ray.io/v1", "kind": "RayCronJob", "metadata": _meta(job), "spec": given}


def _cron(job: LaunchJob, one: Mapping[str, Any]) -> list[Doc]:
    """By Kubernetes' clock, which every cluster has: a pod that makes a RayJob, and what it may do."""
    subject = {"kind": "ServiceAccount", "name": f"{job.name}-cron"}
    container = {
        "name": "create",
        "image": KUBECTL,
        "command": ["kubectl", "create", "-f", "/manifests/rayjob.yaml"],
        "resources": {"limits": {"cpu": "200m", "memory": "128Mi"}},
        "volumeMounts": [{"name": "manifests", "mountPath": "/manifests", "readOnly": True}],
    }
    pod = {
        "serviceAccountName": subject["name"],
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "manifests", "configMap": {"name": f"{job.name}-rayjob"}}],
    }
    spec = {
        "schedule": job.schedule,
        **({"timeZone": job.time_zone} if job.time_zone else {}),
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": PENDING_S,
        "successfulJobsHistoryLimit": KEPT,
        "failedJobsHistoryLimit": KEPT,
        "jobTemplate": {"spec": {"backoffLimit": 0, "activeDeadlineSeconds": TTL_S, "template": {"spec": pod}}},
    }
    rules = [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create"]}]
    rbac = "rbac.authorization.k8s.io"
    meta, data = _meta(job, "-cron"), {"rayjob.yaml": _text([dict(one)])}
    role_of = {"apiGroup": rbac, "kind": "Role", "name": subject["name"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "subjects": [subject],
            "roleRef": role_of,
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(job, "-rayjob"), "data": data},
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta, "spec": spec},
    ]
