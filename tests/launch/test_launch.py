"""`task=launch`: what each target gets is what its own tools take, and runs the very command that was asked for."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from asap_ray.checks.keys import NAMES
from asap_ray.checks.launch import is_schedule
from asap_ray.launch.names import GPUS
from asap_ray.overrides import configure
from asap_ray.settings import data_dir
from tests.launch.crds import KINDS

TUNE = ("+model=llama70b", "tiers=[roofline,run]")
LAUNCH = ("task=launch", "run_dir=run", "output=json")


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    """A wheel with one module: the real one is built in tests of the wheel."""
    path = tmp_path / "asap_ray-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("asap_ray/__init__.py", "")
    return f"launch.wheel={path}"


@pytest.fixture
def launched(command: Callable[..., Any], wheel: str) -> Callable[..., dict[str, Any]]:
    def launch(target: str, *words: str) -> dict[str, Any]:
        told = command(*LAUNCH, wheel, f"launch.target={target}", *words)
        assert told.status == 0, told.err
        return json.loads(told.out)

    return launch


def documents(name: str) -> list[dict[str, Any]]:
    found = list(yaml.safe_load_all(Path("run/launch", name).read_text()))
    for each in found:
        jsonschema.validate(each, KINDS[each["kind"]])
    return found


def shellchecked(*paths: Path) -> None:
    ended = subprocess.run([Path(sys.executable).with_name("shellcheck"), *paths], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout


def words_of(script: Path) -> list[str]:
    """The words that a script gives to asap_ray, as bash reads them."""
    code = "exec() { shift; printf '%s\\n' \"$@\"; }; mkdir() { :; }; . " + str(script.absolute())
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_ray_job_on_kubernetes_holds_whole_slices_and_runs_the_command_once(launched: Any) -> None:
    launched("kuberay", *TUNE, "hardware=2xv6e-16", "launch.replicas=3", "launch.hours=2", "launch.storage=claim")
    (job,) = documents("rayjob.yaml")
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["submitterConfig"]["backoffLimit"]) == (0, 0)
    assert (spec["activeDeadlineSeconds"], spec["preRunningDeadlineSeconds"]) == (7200, 1800)
    assert spec["shutdownAfterJobFinishes"] is True
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    (group,) = cluster["workerGroupSpecs"]
    # Two slices of 16 chips, three times: a v6e slice of several hosts has four chips on each.
    assert (group["replicas"], group["numOfHosts"]) == (6, 4)
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == "4"
    assert container["ports"] == [{"containerPort": 8081, "name": "mxla"}]
    assert group["template"]["spec"]["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    head = cluster["headGroupSpec"]["template"]["spec"]
    assert {"name": "results", "persistentVolumeClaim": {"claimName": "claim"}} in head["volumes"]
    (config,) = documents("command.yaml")
    assert config["data"]["file-0"] == Path("run/launch/job/run.sh").read_text()
    assert {"key": "file-0", "path": "run.sh"} in head["volumes"][0]["configMap"]["items"]


@pytest.mark.parametrize(
    ("hardware", "replicas", "chips", "selector"),
    [
        ("h100x64", 8, "8", {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}),
        ("mi300x16", 2, "8", {}),
    ],
)
def test_gpus_on_kubernetes_are_hosts(launched: Any, hardware: str, replicas: int, chips: str, selector: dict) -> None:
    launched("kuberay", *TUNE, f"hardware={hardware}")
    (job,) = documents("rayjob.yaml")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["numOfHosts"]) == (replicas, 1)
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == chips
    assert group["template"]["spec"]["nodeSelector"] == selector


def test_a_schedule_is_written_for_both_clocks(launched: Any) -> None:
    told = launched("kuberay", "+model=llama70b", "launch.schedule=0 1 * * *", "launch.time_zone=Europe/Zurich")
    _, ray_cron = documents("raycronjob.yaml")
    (job,) = documents("rayjob.yaml")
    assert ray_cron["spec"] == {"timeZone": "Europe/Zurich", "schedule": "0 1 * * *", "jobTemplate": job["spec"]}
    assert job["spec"]["rayClusterSpec"]["workerGroupSpecs"] == []  # compiling takes no chips
    cron = {each["kind"]: each for each in documents("cronjob.yaml")}
    spec = cron["CronJob"]["spec"]
    assert (spec["concurrencyPolicy"], spec["jobTemplate"]["spec"]["backoffLimit"]) == ("Forbid", 0)
    assert (spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (3, 3)
    assert told["commands"][-1].startswith("kubectl apply -f ")
    (config, *_) = (each for each in documents("cronjob.yaml") if each["metadata"]["name"].endswith("-rayjob"))
    assert yaml.safe_load(config["data"]["rayjob.yaml"]) == job
    assert cron["Role"]["rules"] == [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create"]}]


def test_a_field_that_kuberay_does_not_have_is_refused_by_the_schema() -> None:
    bad = {"apiVersion": "ray.io/v1", "kind": "RayCronJob", "metadata": {"name": "a"}, "spec": {}}
    bad["spec"] = {"schedule": "0 1 * * *", "jobTemplate": {}, "concurrencyPolicy": "Forbid"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, KINDS["RayCronJob"])


@pytest.mark.parametrize("target", ["local", "ray_job", "slurm", "kuberay", "gce_tpu"])
def test_every_target_runs_the_words_that_were_typed_with_the_users_files(
    launched: Any, target: str, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text("{}")
    (tmp_path / "mine" / "stack").mkdir(parents=True)
    (tmp_path / "mine" / "stack" / "own.yaml").write_text("name: own\n")
    hardware = "h100x16" if target == "slurm" else "v5p-16"
    where = ("launch.project=p", "launch.zone=us-east5-a") if target == "gce_tpu" else ()
    asked = (f"hardware={hardware}", "tiers=[roofline,run]", "space.fix={tensor: 4, remat: full}")
    launched(target, "+model.hf_config=own/config.json", *asked, "config_dir=mine", *where)
    script = Path("run/launch/job/run.sh")
    (python, module, *words) = words_of(script)
    assert (python, module) == ("-m", "asap_ray")
    own = ["model.hf_config=inputs/model.hf_config/own/config.json", *asked, "config_dir=inputs/conf"]
    address = "local" if target == "local" else "auto"
    assert sorted(words[:-1]) == sorted([*own, f"ray.address={address}"])
    assert words[-1].startswith("run_dir=/")
    assert (script.parent / "inputs/conf/stack/own.yaml").read_text() == "name: own\n"
    shellchecked(*Path("run/launch").rglob("*.sh"), *Path("run/launch").rglob("*.sbatch"))


@pytest.mark.parametrize("task", NAMES["launch.task"])
@pytest.mark.parametrize("target", ["local", "slurm"])
def test_what_is_launched_is_a_command_that_asap_ray_takes(
    launched: Any, target: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's address is refused where a command has no trials."""
    own = {"tune": ("+model=tiny", "tiers=roofline"), "nightly": ("nightly=small",)}.get(task, ())
    launched(target, f"launch.task={task}", *own)
    (_, _, *words) = words_of(Path("run/launch/job/run.sh"))
    monkeypatch.chdir("run/launch/job")
    assert configure(words).task == task
    assert (f"ray.address={'local' if target == 'local' else 'auto'}" in words) == (
        task in ("doctor", "compare", "nightly")
    )


def test_tables_of_one_name_and_a_policy_come_along(launched: Any, tmp_path: Path) -> None:
    for folder in ("a b", "c"):
        (tmp_path / folder / "x").mkdir(parents=True)
        (tmp_path / folder / "x" / "rows.csv").write_text(folder)
    launched("local", "launch.task=compare", "compare.tables=['a b/x/rows.csv',c/x/rows.csv]")
    (_, _, *words) = words_of(Path("run/launch/job/run.sh"))
    found = configure(words).compare.tables
    assert found is not None
    assert [Path("run/launch/job", each).read_text() for each in found] == ["a b", "c"]

    (tmp_path / "my policy.npz").write_text("weights")
    launched("local", "+model=tiny", "agents=policy", "agents.policy=my policy.npz")
    (_, _, *words) = words_of(Path("run/launch/job/run.sh"))
    policy = configure(words).agents.policy
    assert policy is not None
    assert Path("run/launch/job", policy).read_text() == "weights"


def test_commands_to_type_can_be_typed(command: Any, wheel: str) -> None:
    told = command(*LAUNCH[::2], wheel, "launch.target=local", "+model=tiny", "run_dir='a b'")
    (line,) = json.loads(told.out)["commands"]
    assert [word for word in shlex.split(line) if word != "bash"] == [str(Path("a b/launch/job/run.sh").absolute())]


def test_every_gpu_with_a_label_is_a_chip() -> None:
    assert set(GPUS) <= {path.stem.replace("_", "-") for path in (data_dir("conf") / "hardware").iterdir()}


def test_a_batch_script_asks_for_the_nodes_and_gpus_of_the_slice(launched: Any) -> None:
    launched("slurm", *TUNE, "hardware=h100x64", "launch.options=[--partition=gpu,--account=me]", "launch.hours=1.5")
    lines = Path("run/launch/job.sbatch").read_text().splitlines()
    asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert {"--nodes=8", "--gpus-per-node=8", "--time=01:30:00", "--partition=gpu", "--account=me"} <= asked


def test_tpu_vms_are_named_as_google_names_them(launched: Any) -> None:
    where = ("launch.project=p", "launch.zone=us-east5-a")
    schema = json.loads(ray_file("autoscaler/ray-schema.json").read_text())
    for hardware, kind in (("v5p-128", "v5p-128"), ("v5e-16", "v5litepod-16"), ("tpu7x-128", "tpu7x-128")):
        launched("gce_tpu", *TUNE, f"hardware={hardware}", *where)
        given = yaml.safe_load(Path("run/launch/cluster.yaml").read_text())
        jsonschema.validate(given, schema)  # the schema of Ray's own cluster launcher
        assert given["available_node_types"][hardware]["node_config"]["acceleratorType"] == kind
        assert given["provider"]["region"] == "us-east5"


def ray_file(path: str) -> Path:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("launch.target=slurm", "hardware=v5p-128", *TUNE), "launch.target=slurm: for GPUs and processors"),
        (("launch.target=gce_tpu", *TUNE), "launch.project=null: with launch.target=gce_tpu, the project"),
        (("launch.target=slurm", *TUNE, "launch.storage=x"), "launch.storage=x: only with launch.target=kuberay"),
        (("launch.target=kuberay", *TUNE, "launch.schedule=1 2"), "launch.schedule=1 2: five fields as cron"),
        (("launch.target=kuberay", *TUNE, "launch.schedule=99 1 * * *"), "launch.schedule=99 1 * * *: five fields as"),
        (("launch.target=kuberay", *TUNE, "launch.time_zone=Europe/Zurich"), "time_zone=Europe/Zurich: only with"),
        (
            ("launch.target=kuberay", *TUNE, "launch.schedule=0 1 * * *", "launch.time_zone=Mars/Olympus"),
            "launch.time_zone=Mars/Olympus: a name of the time zone database",
        ),
        (("launch.target=kuberay", *TUNE, "launch.results=here"), "launch.results=here: a path from the root"),
        (("launch.target=kuberay", *TUNE, "launch.hours=1e9"), "launch.hours=1000000000.0: a number above 0, up to"),
        (("launch.target=ray_job", *TUNE, "launch.address=here"), "launch.address=here: an address such as http://"),
        (("launch.target=slurm", *TUNE, "launch.options=[gpu]"), "launch.options=[gpu]: options as sbatch takes"),
        (("launch.target=local", "launch.task=calibrate", "tiers=[run]"), "tiers=run: for task=tune"),
        (("launch.target=local", "launch.task=validate", "+model=tiny"), "+model=tiny: not for task=validate"),
        (("launch.target=local", "+model=tiny", "nightly=small"), "nightly=small: only with task=nightly"),
        (("launch.target=kuberay", *TUNE, "launch.name=Big"), "launch.name=Big: a name of at most 40"),
        (("launch.target=kuberay", *TUNE, "ray.address=auto"), "ray.address=auto: left out"),
        (("launch.target=kuberay", *TUNE, "launch.wheel=none.whl"), "launch.wheel=none.whl: the path of a wheel"),
        (("launch.target=moon", *TUNE), "launch.target=moon: allowed: local, ray_job"),
        (("launch.target=kuberay",), "+model=: a model is needed"),
    ],
)
def test_what_cannot_be_launched_is_one_line(command: Any, wheel: str, words: tuple[str, ...], said: str) -> None:
    given = () if any("launch.wheel" in word for word in words) else (wheel,)
    told = command(*LAUNCH, *given, *words)
    assert told.status == 1
    assert said in told.err
    assert told.err.count("\n") == 1


def test_launch_keys_need_the_task(command: Any) -> None:
    told = command("+model=tiny", "launch.hours=3")
    assert "launch.hours=3.0: only with task=launch" in told.err


def test_words_are_no_key(command: Any) -> None:
    assert "words=[a]: " in command("+model=tiny", "words=[a]").err


def test_the_checkout_is_shipped_as_a_wheel_and_never_as_a_tree(command: Any) -> None:
    told = command(*LAUNCH, "launch.target=ray_job", "launch.task=doctor")
    assert told.status == 0, told.err
    top = {path.name for path in Path("run/launch/job").iterdir()}
    assert top == {"run.sh", "asap_ray", "asap_ray-0.1.0.dist-info"}
    assert Path("run/launch/job/asap_ray/conf/model/tiny.yaml").is_file()
    # As it lies there it is a package that runs, with no checkout in sight.
    code = "import asap_ray.settings as s; print(s.data_dir('conf'))"
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd="run/launch/job", env=clean, check=True
    )
    assert ended.stdout.strip() == str(Path("run/launch/job/asap_ray/conf").absolute())


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("0 1 * * *", True),
        ("*/15 0-6,20 1 jan-mar MON", True),
        ("60 1 * * *", False),
        ("0 1 0 * *", False),
        ("0 1 * * 7", False),  # Kubernetes' parser ends the week with Saturday, 6
        ("5-1 * * * *", False),
        ("*/0 * * * *", False),
        ("a b c d e", False),
        ("@daily", False),
    ],
)
def test_schedules_are_those_of_cron(text: str, fine: bool) -> None:
    assert is_schedule(text) is fine
