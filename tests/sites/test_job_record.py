"""A restarted process finds the running job in torch's store, and rejects a record that does not fit."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import HashStore

from gradwire.config import resolve
from gradwire.errors import ConfigError, LinkError
from gradwire.sites.job_record import JobRecord, facts_of, find_job, job_facts, publish_job
from gradwire.sites.leader_record import LeaderRecord

CONFIG: dict[str, Any] = {
    "level": "int8", "plan": "loadaware", "planning": {"elastic": True}, "transport": {"kind": "ltp"},
}  # fmt: skip


def test_without_a_job_there_is_nothing_to_rejoin() -> None:
    with pytest.raises(LinkError, match=r"GRADWIRE_REJOIN.*no job"):
        find_job(HashStore(), "0", facts_of(resolve(CONFIG)), 0.2)


def test_a_job_with_other_settings_is_not_joined() -> None:
    store, leader = HashStore(), LeaderRecord(kind="ltp", secret="", addresses={}, plan="")
    publish_job(store, "0", JobRecord(leader, facts_of(resolve(CONFIG)), drawn=True))
    assert find_job(store, "0", facts_of(resolve(CONFIG)), 0.2).leader == leader
    with pytest.raises(ConfigError, match=r"level is 'fp16' here and 'int8' in the running job"):
        find_job(store, "0", facts_of(resolve({**CONFIG, "level": "fp16"})), 0.2)


def test_a_job_with_another_cap_is_not_joined() -> None:
    store, leader = HashStore(), LeaderRecord(kind="ltp", secret="", addresses={}, plan="")
    ours, theirs = ({**CONFIG, "level": "auto", "lossiest": cap} for cap in ("int8", "int4"))
    publish_job(store, "0", JobRecord(leader, facts_of(resolve(theirs)), drawn=True))
    with pytest.raises(ConfigError, match=r"lossiest is 'int8' here and 'int4' in the running job"):
        find_job(store, "0", facts_of(resolve(ours)), 0.2)


def test_ranks_may_keep_and_encode_residuals_in_different_ways_but_not_round_values_differently() -> None:
    """The frames are the same, so a rank with a GPU and one without can be in one job."""
    store, leader = HashStore(), LeaderRecord(kind="ltp", secret="", addresses={}, plan="")
    publish_job(store, "0", JobRecord(leader, facts_of(resolve(CONFIG)), drawn=True))
    own = {"encode": "gpu", "residual_memory": "host", "residual_type": "bfloat16"}
    assert find_job(store, "0", facts_of(resolve({**CONFIG, "compress": own})), 0.2).leader == leader
    with pytest.raises(ConfigError, match=r"compress.rounding is 'nearest' here and 'stochastic' in the running job"):
        find_job(store, "0", facts_of(resolve({**CONFIG, "compress": {"rounding": "nearest"}})), 0.2)


def test_a_job_does_not_grow_beyond_its_places_and_says_what_to_do_instead() -> None:
    store, leader = HashStore(), LeaderRecord(kind="ltp", secret="", addresses={}, plan="")
    publish_job(store, "0", JobRecord(leader, job_facts(resolve(CONFIG), 4, 10), drawn=True))
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is '5' here and '4' in the running job.*start again with all"):
        find_job(store, "0", job_facts(resolve(CONFIG), 5, 10), 0.2)
    growing = resolve({**CONFIG, "planning": {"elastic": True, "max_ranks": 8}})
    with pytest.raises(ConfigError, match=r"planning.max_ranks is '8' here and '0' in the running job.*with all"):
        find_job(store, "0", job_facts(growing, 8, 10), 0.2)


def test_a_job_with_another_model_is_not_joined() -> None:
    store, leader = HashStore(), LeaderRecord(kind="ltp", secret="", addresses={}, plan="")
    publish_job(store, "0", JobRecord(leader, job_facts(resolve(CONFIG), 4, 10), drawn=True))
    with pytest.raises(ConfigError, match=r"model's trained values is '11' here and '10' in the running job; give"):
        find_job(store, "0", job_facts(resolve(CONFIG), 4, 11), 0.2)


@pytest.mark.parametrize("text", ["", "{}", '{"leader": 3, "facts": {}}', "\xff"])
def test_a_record_that_cannot_be_parsed_is_an_error(text: str) -> None:
    store = HashStore()
    store.set("gradwire/jobs/0", text)
    with pytest.raises(LinkError, match="cannot be read"):
        find_job(store, "0", {}, 0.2)
