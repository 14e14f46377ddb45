"""The names of properties of a new table."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.alteration.property_changes import changed_properties
from airflow_txlog.engine.commit.content.property_names import of_new_table
from airflow_txlog.errors import InvalidProperty


def test_a_new_table_gets_properties_under_the_names_that_delta_has() -> None:
    given = {
        "DELTA.appendonly": "true",
        "owner": "me",
        "Delta.Feature.x": "supported",
        "txlog.truststatistics": "false",
    }
    assert of_new_table(given, "memory://t") == {
        "delta.appendOnly": "true",
        "owner": "me",
        "delta.feature.x": "supported",
        "txlog.trustStatistics": "false",
    }


def test_a_new_table_leaves_out_the_facts_about_the_log_of_another_one() -> None:
    """Spark's own CREATE TABLE statements give the versions of the protocol as properties, too."""
    of_log = [
        "delta.minReaderVersion",
        "Delta.MinWriterVersion",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.requireCheckpointProtectionBeforeVersion",
    ]
    assert of_new_table({**dict.fromkeys(of_log, "7"), "delta.appendOnly": "true"}, "memory://t") == {
        "delta.appendOnly": "true"
    }


@pytest.mark.parametrize("name", ["delta.appendOnlly", "Delta.appendOnlly", "txlog.shared"])
def test_a_property_that_delta_does_not_know_is_refused_for_a_new_table(name: str) -> None:
    with pytest.raises(InvalidProperty, match="is not known") as caught:
        of_new_table({name: "true"}, "memory://t")
    assert caught.value.name == name
    assert name != "delta.appendOnlly" or "delta.appendOnly" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("appendOnly", "delta.appendOnly"),
        ("APPENDONLY", "delta.appendOnly"),
        ("trustStatistics", "txlog.trustStatistics"),
    ],
)
def test_a_known_property_without_its_prefix_is_refused_and_may_be_removed(name: str, known: str) -> None:
    with pytest.raises(InvalidProperty, match=f"{name} would do nothing: its name is {known}"):
        of_new_table({name: "true"}, "memory://t")
    with pytest.raises(InvalidProperty, match=f"Write {known}"):
        changed_properties({}, {name: "true"}, (), "memory://t")
    assert changed_properties({name: "true"}, {"mine": "1"}, (name,), "memory://t").configuration == {"mine": "1"}


def test_a_property_that_is_given_in_two_cases_is_refused() -> None:
    with pytest.raises(InvalidProperty, match="twice"):
        of_new_table({"delta.appendOnly": "true", "delta.appendonly": "false"}, "memory://t")
