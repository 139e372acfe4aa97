"""External models in what Serve gets: no application is started for them, and gateways get them by the policy."""

from __future__ import annotations

import json

import msgspec

from longboat.cluster.fleet.serve_config import digests_in, serve_document
from longboat.cluster.members.slot_shares import policy_document
from longboat.core.policy import Policy
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of

FLEET = load_fleet(
    """
models:
  - name: cloud
    engine: {kind: external, urls: [https://h/v1], api_key_env: PROVIDER_KEY, limits: {requests_per_day: 5}}
""",
    "fleet.yaml",
)


def test_external_models_are_no_applications_and_reach_gateways_by_the_policy() -> None:
    policy = policy_of(FLEET.gateway, external=FLEET.external)
    document = json.loads(json.dumps(serve_document(FLEET, [], dump_fleet(FLEET), policy=policy)))
    assert digests_in(document) == {}
    (controller,) = document["applications"]
    values = controller["deployments"][0]["user_config"]
    assert values["models"] == []
    ordered = msgspec.json.decode(policy_document(values["policy"], num_gateways=2), type=Policy)
    assert ordered.external == policy.external
    assert ordered.num_gateways == 2
