"""The files of deploy/: they parse, have only fields that their kinds know, and agree with pyproject.toml.

The allowed fields are those of the kinds' published schemas that the manifests use; there is no cluster here to ask.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gradwire.config import Config
from tests.presence import needs

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# path of an object -> its allowed fields; "*" stands for an index of a list.
ENV = {"name", "value", "valueFrom"}
POD = {"restartPolicy", "enableServiceLinks", "nodeSelector", "containers"}
CONTAINER = {"name", "image", "command", "args", "env"}
JOB = {"parallelism", "completions", "completionMode", "backoffLimit", "template"}
FIELDS: dict[str, dict[str, set[str]]] = {
    "JobSet": {
        "spec": {"network", "failurePolicy", "replicatedJobs"},
        "spec.network": {"enableDNSHostnames"},
        "spec.failurePolicy": {"maxRestarts"},
        "spec.replicatedJobs.*": {"name", "replicas", "template"},
        "spec.replicatedJobs.*.template": {"spec"},
        "spec.replicatedJobs.*.template.spec": JOB,
        "spec.replicatedJobs.*.template.spec.template": {"spec"},
        "spec.replicatedJobs.*.template.spec.template.spec": POD,
        "spec.replicatedJobs.*.template.spec.template.spec.containers.*": CONTAINER,
        "spec.replicatedJobs.*.template.spec.template.spec.containers.*.env.*": ENV,
    },
    "ClusterTrainingRuntime": {
        "spec": {"mlPolicy", "template"},
        "spec.mlPolicy": {"numNodes", "torch"},
        "spec.mlPolicy.torch": {"numProcPerNode"},
        "spec.template": {"spec"},
        "spec.template.spec": {"replicatedJobs"},
        "spec.template.spec.replicatedJobs.*": {"name", "template"},
        "spec.template.spec.replicatedJobs.*.template": {"metadata", "spec"},
        "spec.template.spec.replicatedJobs.*.template.spec": JOB,
        "spec.template.spec.replicatedJobs.*.template.spec.template.spec": POD,
        "spec.template.spec.replicatedJobs.*.template.spec.template.spec.containers.*": CONTAINER,
        "spec.template.spec.replicatedJobs.*.template.spec.template.spec.containers.*.env.*": ENV,
    },
    "TrainJob": {
        "spec": {"runtimeRef", "trainer"},
        "spec.runtimeRef": {"name", "kind", "apiGroup"},
        "spec.trainer": {"image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode"},
        "spec.trainer.env.*": ENV,
    },
}
VERSIONS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "ClusterTrainingRuntime": "trainer.kubeflow.org/v1alpha1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
}
SKY = {"name", "resources", "num_nodes", "envs", "secrets", "workdir", "setup", "run"}
# Variables that are not settings, as docs/reference/config.md lists them.
KNOWN = re.findall(r"`(GRADWIRE_\w+)`", (ROOT / "docs/reference/config.md").read_text())


def documents(name: str) -> list[dict[str, Any]]:
    needs("yaml", "docs")
    import yaml

    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def unknown_fields(value: Any, allowed: dict[str, set[str]], path: str = "") -> list[str]:
    """Paths of fields that are not allowed; an object whose path is not listed may have any."""
    if isinstance(value, list):
        return [wrong for one in value for wrong in unknown_fields(one, allowed, f"{path}.*")]
    if not isinstance(value, dict):
        return []
    known = allowed.get(path)
    wrong = [f"{path}.{name}" for name in value if known is not None and name not in known]
    inner = [unknown_fields(one, allowed, f"{path}.{name}".lstrip(".")) for name, one in value.items()]
    return wrong + [one for found in inner for one in found]


@pytest.mark.parametrize("name", ["kubernetes/jobset.yaml", "kubernetes/runtime.yaml"])
def test_manifests_have_only_fields_that_their_kinds_know(name: str) -> None:
    for document in documents(name):
        kind = document["kind"]
        assert document["apiVersion"] == VERSIONS[kind]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
        assert unknown_fields(document, FIELDS[kind]) == []


def test_an_unknown_field_is_found() -> None:
    manifest = {"spec": {"replicatedJobs": [{"name": "a", "replica": 2}]}}
    assert unknown_fields(manifest, FIELDS["JobSet"]) == ["spec.replicatedJobs.*.replica"]


def test_the_jobs_of_the_sites_number_all_ranks_once() -> None:
    (jobset,) = documents("kubernetes/jobset.yaml")
    ranks: list[int] = []
    for job in jobset["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        env = {one["name"]: one.get("value") for one in container["env"]}
        assert env["GRADWIRE_SITE"] == spec["template"]["spec"]["nodeSelector"]["topology.kubernetes.io/region"]
        (script,) = container["args"]
        for index in range(spec["completions"]):
            line = subprocess.run(
                ["bash", "-c", f"echo {script}"],
                env={"JOB_COMPLETION_INDEX": str(index)},
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            ).stdout
            words = shlex.split(line)
            ranks.append(int(words[words.index("--node-rank") + 1]))
            assert words[words.index("--nnodes") + 1] == "4"
            first = jobset["spec"]["replicatedJobs"][0]["name"]
            assert words[words.index("--master-addr") + 1] == f"{jobset['metadata']['name']}-{first}-0-0.train"
    assert sorted(ranks) == [0, 1, 2, 3]


def test_the_train_job_names_the_runtime() -> None:
    runtime, job = documents("kubernetes/runtime.yaml")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


@pytest.mark.parametrize("name", ["kubernetes/jobset.yaml", "kubernetes/runtime.yaml", "skypilot.yaml"])
def test_every_gradwire_variable_of_a_manifest_is_known(name: str) -> None:
    used = set(re.findall(r"\bGRADWIRE_[A-Z_]+", (DEPLOY / name).read_text()))
    settings = {f"GRADWIRE_{field.upper()}" for field in Config.__struct_fields__}
    assert used
    assert used <= settings | set(KNOWN), used - settings - set(KNOWN)


def test_the_skypilot_task_parses_and_starts_one_rank_of_a_site() -> None:
    (task,) = documents("skypilot.yaml")
    assert set(task) <= SKY
    assert 'GRADWIRE_SITE="$SITE"' in task["run"]
    assert "--node-rank" in task["run"]
    subprocess.run(["bash", "-n"], input=task["setup"] + task["run"], text=True, check=True, timeout=10)
    script = re.search(r"gradwire\.run (\S+)", task["run"])
    assert script
    assert (ROOT / script[1]).is_file()


def test_the_recipe_requires_what_the_project_requires() -> None:
    recipe = (DEPLOY / "conda/meta.yaml").read_text()
    assert f'set version = "{PROJECT["version"]}"' in recipe
    for requirement in PROJECT["dependencies"]:
        name, least = re.match(r"([\w.]+)>=([\d.]+)", requirement).groups()  # type: ignore[union-attr]
        packaged = "pytorch" if name == "torch" else name
        assert re.search(rf"^    - {re.escape(packaged)} >={re.escape(least)}", recipe, re.MULTILINE), requirement


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def faults(text: str) -> list[str]:
    """What a linter of Dockerfiles would name first."""
    lines = instructions(text)
    wrong = [f"unknown instruction {word}" for word, _ in lines if word not in KNOWN_INSTRUCTIONS]
    runs = [rest for word, rest in lines if word == "RUN"]
    wrong += [
        "apt-get install without update, -y or a clean-up"
        for run in runs
        if "apt-get install" in run and not _clean(run)
    ]
    wrong += ["pip without --no-cache-dir" for run in runs if re.search(r"pip (install|wheel)(?! --no-cache-dir)", run)]
    wrong += [
        f"FROM {rest} has no tag" for word, rest in lines if word == "FROM" and ":" not in rest and "$" not in rest
    ]
    users = [rest for word, rest in lines if word == "USER"]
    wrong += ["the last user is root"] if not users or users[-1] in ("root", "0") else []
    wrong += ["ADD instead of COPY"] if any(word == "ADD" for word, _ in lines) else []
    return wrong


KNOWN_INSTRUCTIONS = {"ARG", "FROM", "RUN", "COPY", "ADD", "WORKDIR", "USER", "CMD", "ENV", "LABEL", "EXPOSE"}


def _clean(run: str) -> bool:
    return "apt-get update" in run and " -y" in run and "rm -rf /var/lib/apt/lists" in run


def test_the_dockerfile_is_sound_and_copies_what_the_wheel_needs() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert faults(text) == []
    copied = {
        part for word, rest in instructions(text) if word == "COPY" and "--from" not in rest for part in rest.split()
    }
    for name in copied - {"./"}:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in (ROOT / ".dockerignore").read_text().splitlines()
    for name in ("pyproject.toml", "CMakeLists.txt", "native", "src", *PROJECT["license-files"], PROJECT["readme"]):
        assert name in copied
    torch = re.search(r"torch==([\d.]+)", (ROOT / "constraints.txt").read_text())
    assert torch
    assert f"torch=={torch[1]}" in text


@pytest.mark.parametrize(
    "bad",
    [
        "FROM python\nUSER a",
        "FROM a:1\nRUN apt-get install x\nUSER a",
        "FROM a:1\nRUN pip install x\nUSER a",
        "FROM a:1",
        "FROM a:1\nADD x y\nUSER a",
        "FROM a:1\nRUM x\nUSER a",
    ],
)
def test_a_fault_of_a_dockerfile_is_found(bad: str) -> None:
    assert len(faults(bad)) == 1
