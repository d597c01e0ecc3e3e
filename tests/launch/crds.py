"""What KubeRay and Kubernetes take, as JSON schemas that refuse every other field: names and types alone, written from
KubeRay's API reference (1.7) and the Kubernetes API reference, as far as anything of ours could use them."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "minLength": 1}
WHOLE: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi)?$"}
LABEL: Schema = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
CRON: Schema = {"type": "string", "pattern": r"^([0-9*/,-]+ ){4}[0-9*/,-]+$"}


def obj(required: str = "", **fields: Schema) -> Schema:
    """An object of these fields and no others."""
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def word(*allowed: str) -> Schema:
    return {"enum": list(allowed)}


META = {
    **obj(
        name=LABEL, generateName={"type": "string", "pattern": "^[a-z0-9][a-z0-9-]*-$"}, namespace=LABEL, labels=TEXTS
    ),
    "oneOf": [{"required": ["name"]}, {"required": ["generateName"]}],
}
QUANTITIES: Schema = {"type": "object", "additionalProperties": QUANTITY}
ENV = obj("name value", name=TEXT, value=TEXT)
PORT = obj("containerPort", containerPort={"type": "integer", "minimum": 1, "maximum": 65535}, name=LABEL)
MOUNT = obj("name mountPath", name=LABEL, mountPath={"type": "string", "pattern": "^/"}, readOnly=FLAG)
CONTAINER = obj(
    "name image",
    name=LABEL,
    image=TEXT,
    command=many(TEXT),
    env=many(ENV),
    ports=many(PORT),
    resources=obj(limits=QUANTITIES, requests=QUANTITIES),
    volumeMounts=many(MOUNT),
)
VOLUME = {
    **obj(
        "name",
        name=LABEL,
        configMap=obj("name", name=LABEL, items=many(obj("key path", key=TEXT, path=TEXT))),
        emptyDir=obj(medium=word("Memory"), sizeLimit=QUANTITY),
        persistentVolumeClaim=obj("claimName", claimName=LABEL),
    ),
    "minProperties": 2,
    "maxProperties": 2,
}
POD = obj(
    "containers",
    containers={**many(CONTAINER), "minItems": 1},
    volumes=many(VOLUME),
    nodeSelector=TEXTS,
    tolerations=many(obj("key operator", key=TEXT, operator=word("Exists", "Equal"), effect=word("NoSchedule"))),
    serviceAccountName=LABEL,
    restartPolicy=word("Never", "OnFailure", "Always"),
    securityContext=obj(fsGroup=WHOLE),
)
TEMPLATE = obj("spec", metadata=obj(labels=TEXTS, annotations=TEXTS), spec=POD)
HEAD = obj("rayStartParams template", rayStartParams=TEXTS, template=TEMPLATE)
WORKERS = obj(
    "groupName minReplicas maxReplicas rayStartParams template",
    groupName=LABEL,
    replicas=WHOLE,
    minReplicas=WHOLE,
    maxReplicas=WHOLE,
    numOfHosts={"type": "integer", "minimum": 1},
    rayStartParams=TEXTS,
    template=TEMPLATE,
)
CLUSTER = obj(
    "headGroupSpec",
    rayVersion=TEXT,
    headGroupSpec=HEAD,
    workerGroupSpecs=many(WORKERS),
    enableInTreeAutoscaling=FLAG,
    authOptions=obj(mode=word("disabled", "token")),
)
RAY_JOB = obj(
    "entrypoint rayClusterSpec",
    entrypoint=TEXT,
    submissionMode=word("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"),
    backoffLimit=WHOLE,
    submitterConfig=obj(backoffLimit=WHOLE),
    activeDeadlineSeconds={"type": "integer", "minimum": 1},
    preRunningDeadlineSeconds={"type": "integer", "minimum": 1},
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=WHOLE,
    runtimeEnvYAML=TEXT,
    suspend=FLAG,
    rayClusterSpec=CLUSTER,
)
BATCH_JOB = obj("template", backoffLimit=WHOLE, activeDeadlineSeconds=WHOLE, template=TEMPLATE)
CRON_JOB = obj(
    "schedule jobTemplate",
    schedule=CRON,
    timeZone=TEXT,
    concurrencyPolicy=word("Allow", "Forbid", "Replace"),
    startingDeadlineSeconds=WHOLE,
    successfulJobsHistoryLimit=WHOLE,
    failedJobsHistoryLimit=WHOLE,
    suspend=FLAG,
    jobTemplate=obj("spec", spec=BATCH_JOB),
)
RULE = obj("apiGroups resources verbs", apiGroups=many(TEXT), resources=many(TEXT), verbs=many(TEXT))
RBAC = "rbac.authorization.k8s.io"
ROLE_REF = obj("apiGroup kind name", apiGroup=word(RBAC), kind=word("Role"), name=LABEL)


def kind(version: str, name: str, **fields: Schema) -> Schema:
    return obj(
        " ".join(("apiVersion", "kind", "metadata", *fields)),
        apiVersion=word(version),
        kind=word(name),
        metadata=META,
        **fields,
    )


KINDS: dict[str, Schema] = {
    "RayJob": kind("ray.io/v1", "RayJob", spec=RAY_JOB),
    "RayCronJob": kind(
        "ray.io/v1",
        "RayCronJob",
        spec=obj("schedule jobTemplate", schedule=CRON, timeZone=TEXT, suspend=FLAG, jobTemplate=RAY_JOB),
    ),
    "ConfigMap": kind("v1", "ConfigMap", data=TEXTS),
    "CronJob": kind("batch/v1", "CronJob", spec=CRON_JOB),
    "ServiceAccount": kind("v1", "ServiceAccount"),
    "Role": kind(f"{RBAC}/v1", "Role", rules=many(RULE)),
    "RoleBinding": kind(
        f"{RBAC}/v1",
        "RoleBinding",
        subjects=many(obj("kind name", kind=word("ServiceAccount"), name=LABEL)),
        roleRef=ROLE_REF,
    ),
}
