"""The Helm chart: ten files of values are rendered by Helm's own library, and pass the schemas of Kubernetes.

Both packages are installed by ``make check-deploy``; without them, these tests are skipped.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from longboat.cluster.host.ray_command import RayOptions, ray_env
from longboat.spec.files.load import load_fleet

helm = pytest.importorskip("helm_python", reason="make check-deploy installs helm-python-sdk and runs this")
kubernetes = pytest.importorskip("kubernetes_validate", reason="make check-deploy installs kubernetes-validate")

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "longboat"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES = "1.33"
NOT_IN_KUBERAY_PODS = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}  # KubeRay sets its own variables of the token

# The fields of ray.io/v1 that the chart uses, after KubeRay's own types (raycluster_types.go). No package has its
# CustomResourceDefinition.
GROUP = {"rayStartParams": dict, "template": dict}
RAY_CLUSTER: dict[str, Any] = {
    "rayVersion": str,
    "enableInTreeAutoscaling": bool,
    "authOptions": {"mode": str, "secretName": str},
    "headGroupSpec": GROUP | {"serviceType": str},
    "workerGroupSpecs": [GROUP | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}],
}


@cache
def rendered(name: str) -> list[dict[str, Any]]:
    return documents_of(yaml.safe_load((CHART / "ci" / name).read_text()))


def documents_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    with helm.Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name="demo", namespace="llm")
    documents = [one for path, text in texts.items() if path.endswith(".yaml") for one in yaml.safe_load_all(text)]
    return [one for one in documents if one]


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [one for one in rendered(name) if one["kind"] == kind]


def mistakes(value: Any, shape: Any, path: str) -> list[str]:
    if isinstance(shape, dict):
        unknown = [f"{path}.{key}: unknown" for key in value if key not in shape]
        return unknown + [found for key in value if key in shape for found in mistakes(value[key], shape[key], key)]
    if isinstance(shape, list):
        return [found for item in value for found in mistakes(item, shape[0], path)]
    return [] if isinstance(value, shape) else [f"{path}: {value!r} is not {shape.__name__}"]


def pods(name: str) -> list[dict[str, Any]]:
    """All pod templates."""
    (cluster,) = of_kind(name, "RayCluster")
    spec = cluster["spec"]
    own = [one["spec"]["template"] for one in rendered(name) if one["kind"] in ("Deployment", "Job")]
    return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"]), *own]


@pytest.mark.parametrize("name", [path.name for path in VALUES])
def test_values_pass_the_schemas(name: str) -> None:
    assert {"RayCluster", "Deployment", "Service", "PodDisruptionBudget", "ConfigMap", "Job"} <= {
        one["kind"] for one in rendered(name)
    }
    for document in rendered(name):
        if document["kind"] != "RayCluster":
            kubernetes.validate(document, KUBERNETES, strict=True)
    for template in pods(name):
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **template.get("metadata", {})}}
        kubernetes.validate(pod, KUBERNETES, strict=True)
    (cluster,) = of_kind(name, "RayCluster")
    assert not mistakes(cluster["spec"], RAY_CLUSTER, "spec")
    workers = cluster["spec"]["workerGroupSpecs"]
    groups = [cluster["spec"]["headGroupSpec"], *workers]
    assert all(group.keys() >= GROUP.keys() for group in groups), "KubeRay requires these"
    assert all(group.keys() >= {"groupName", "minReplicas", "maxReplicas"} for group in workers)
    assert cluster["spec"]["authOptions"]["mode"] in ("disabled", "token")
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())


@pytest.mark.parametrize("name", [path.name for path in VALUES])
def test_fleets_are_valid_and_pods_are_guarded(name: str) -> None:
    (config,) = of_kind(name, "ConfigMap")
    fleet = load_fleet(config["data"]["fleet.yaml"], name, folder="/")
    (deployment,) = of_kind(name, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["ports"][0]["containerPort"] == fleet.gateway.port
    for template in pods(name):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert not spec["automountServiceAccountToken"]
        assert spec["shareProcessNamespace"], "`ray start` as the first process would collect no orphans"
        for one in spec["containers"]:
            assert not one["securityContext"]["allowPrivilegeEscalation"]
            assert "auth_token" not in " ".join([*one.get("command", []), *one.get("args", [])])
        mounted = {mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_nodes_start_ray_with_the_variables_of_longboat_node_start() -> None:
    ports = {"metrics": 1, "dashboard_agent": 2}
    options = RayOptions(
        role="head", address="a", gcs_address="a:1", run="r", temp_dir="t", token_file="f", ports=ports
    )
    head, worker = pods("tiny-values.yaml")[:2]
    given = [{entry["name"] for entry in pod["spec"]["containers"][0]["env"]} for pod in (head, worker)]
    workers = RayOptions(**{**vars_of(options), "role": "worker"})
    assert set(ray_env(options)) - NOT_IN_KUBERAY_PODS <= given[0]
    assert set(ray_env(workers)) - NOT_IN_KUBERAY_PODS <= given[1]


def vars_of(options: RayOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


def test_split_gangs_stay_near_each_other_and_cards_are_asked_for() -> None:
    (cluster,) = of_kind("split-values.yaml", "RayCluster")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    (term,) = group["template"]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "topology.kubernetes.io/zone"
    assert term["labelSelector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert group["rayStartParams"]["labels"] == "group=h100,longboat.accelerator=H100"


def test_the_operator_may_reach_only_the_dashboard_and_a_closed_network_stays_closed() -> None:
    nodes = next(
        one for one in of_kind("closed-network-values.yaml", "NetworkPolicy") if "nodes" in one["metadata"]["name"]
    )
    assert not [rule for rule in nodes["spec"]["egress"] if "ipBlock" in str(rule)]
    assert not of_kind("open-values.yaml", "NetworkPolicy")


def policy(documents: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (one for one in documents if one["kind"] == "NetworkPolicy" and one["metadata"]["name"].endswith(name))
    return found["spec"]


def test_engines_download_to_the_volume_of_weights() -> None:
    worker = pods("split-values.yaml")[1]["spec"]["containers"][0]
    (hub,) = (one["value"] for one in worker["env"] if one["name"] == "HF_HOME")
    (mount,) = (one["mountPath"] for one in worker["volumeMounts"] if one["name"] == "weights")
    assert hub.startswith(f"{mount}/")


def test_ports_outside_are_those_of_the_values() -> None:
    rules = policy(documents_of({"networkPolicy": {"egressPorts": [443, 9000]}}), "-nodes")["egress"]
    (outside,) = (rule for rule in rules if "ipBlock" in str(rule))
    assert [port["port"] for port in outside["ports"]] == [443, 9000]


def test_no_port_outside_opens_none() -> None:
    """A rule without ports would allow all of them."""
    rules = policy(documents_of({"networkPolicy": {"egressPorts": []}}), "-nodes")["egress"]
    assert not [rule for rule in rules if "ipBlock" in str(rule)]


def test_clients_of_a_load_balancer_may_come_from_outside_the_cluster() -> None:
    (balanced,) = policy(rendered("tls-values.yaml"), "-clients")["ingress"]
    assert "from" not in balanced
    (inside,) = policy(rendered("tiny-values.yaml"), "-clients")["ingress"]
    assert inside["from"] == [{"namespaceSelector": {}}]
    (named,) = policy(rendered("closed-network-values.yaml"), "-clients")["ingress"]
    assert "apps" in str(named["from"])


def test_the_job_outlasts_the_time_for_the_fleet() -> None:
    (job,) = (one for one in documents_of({"fleetTimeoutSeconds": 1_000_000}) if one["kind"] == "Job")
    assert job["spec"]["activeDeadlineSeconds"] == 1_000_300
    assert "--timeout 1000000\n" in job["spec"]["template"]["spec"]["containers"][0]["args"][0]


def test_the_fleet_comes_up_while_helm_waits_for_the_gateways() -> None:
    (job,) = of_kind("tiny-values.yaml", "Job")
    assert "annotations" not in job["metadata"]
    (other,) = (one for one in documents_of({"fleet": {"name": "other"}}) if one["kind"] == "Job")
    assert other["metadata"]["name"] != job["metadata"]["name"], "the template of a job cannot change"


@pytest.mark.parametrize(("grace_s", "drain_s"), [(330, 300), (20, 10)])
def test_a_drain_ends_within_the_grace_period(grace_s: int, drain_s: int) -> None:
    (gateway,) = (
        one
        for one in documents_of({"gateway": {"terminationGracePeriodSeconds": grace_s}})
        if one["kind"] == "Deployment"
    )
    hook = gateway["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert f"--timeout {drain_s} " in hook[-1]


def test_existing_secrets_and_volumes_are_used() -> None:
    assert not of_kind("existing-values.yaml", "Secret")
    assert not of_kind("existing-values.yaml", "PersistentVolumeClaim")
    (cluster,) = of_kind("existing-values.yaml", "RayCluster")
    assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": "my-token"}
