"""Policies of a comparison: none has seen a table of those whose tables it is tried on."""

from __future__ import annotations

import pytest

from asap_ray.contest.methods import Means, methods_named, publisher_of
from asap_ray.contest.play import Budget, play
from asap_ray.errors import ConfigError
from asap_ray.tasks import taught
from asap_ray.tasks.replays import replays
from asap_ray.tasks.validate import carried_tables

VTRAIN = ("vTrain, one node", "vTrain, many nodes")


def test_a_policy_is_tried_on_nothing_that_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taught, "MADE_UP", 1)
    monkeypatch.setattr(taught, "STEPS", 2)
    grounds = [each for each in replays(carried_tables(), "source", 0.05) if each.source in VTRAIN][:1]
    found = taught.policies_for([*VTRAIN, *(each.source for each in grounds)], None, 0)
    assert set(found) == {"vTrain"}  # two tables of one publisher
    seen = found["vTrain"].origin.sources
    assert seen
    assert not [each for each in seen if publisher_of(each) == "vTrain"]
    (ground,) = grounds
    means = Means(policies=found).on(ground.source)
    assert means.policy is found["vTrain"]
    (method,) = methods_named(("policy",), means)
    searched = play(ground.field(), ground.name, method, 0, Budget(trials=6, least=6), told=True)
    assert len(set(searched.plans)) == 6


def test_without_weights_for_a_ground_there_is_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    ground = replays(carried_tables(), "source", 0.05)[0]
    (method,) = methods_named(("policy",))
    with pytest.raises(ConfigError, match=r"compare\.methods=policy"):
        method.make(ground.field(), 0)
