"""Arbitrary actions, for the properties of the log."""

from __future__ import annotations

from hypothesis import strategies as st

from airflow_txlog.engine.log.actions import Add, Cdc, DeletionVector, DomainMetadata, Remove, SetTransaction

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)
MAPS = st.dictionaries(TEXT, st.one_of(st.none(), TEXT), max_size=3)
VECTORS = st.builds(
    DeletionVector,
    storage_type=st.sampled_from("uip"),
    path_or_inline_dv=TEXT,
    size_in_bytes=st.integers(0, 2**31 - 1),
    cardinality=st.integers(0, 2**63 - 1),
    offset=st.one_of(st.none(), st.integers(0, 2**31 - 1)),
)
OPTIONAL_TEXT = st.one_of(st.none(), TEXT)
OPTIONAL_INT = st.one_of(st.none(), INT64)
ADDS = st.builds(
    Add,
    path=TEXT,
    partition_values=MAPS,
    size=INT64,
    modification_time=INT64,
    data_change=st.booleans(),
    stats=OPTIONAL_TEXT,
    tags=st.one_of(st.none(), MAPS),
    deletion_vector=st.one_of(st.none(), VECTORS),
    base_row_id=OPTIONAL_INT,
    default_row_commit_version=OPTIONAL_INT,
    clustering_provider=OPTIONAL_TEXT,
)
REMOVES = st.builds(
    Remove,
    path=TEXT,
    data_change=st.booleans(),
    deletion_timestamp=OPTIONAL_INT,
    extended_file_metadata=st.one_of(st.none(), st.booleans()),
    partition_values=st.one_of(st.none(), MAPS),
    size=OPTIONAL_INT,
    deletion_vector=st.one_of(st.none(), VECTORS),
)
OTHERS = st.one_of(
    st.builds(Cdc, path=TEXT, partition_values=MAPS, size=INT64, data_change=st.booleans()),
    st.builds(SetTransaction, app_id=TEXT, version=INT64, last_updated=OPTIONAL_INT),
    st.builds(DomainMetadata, domain=TEXT, configuration=TEXT, removed=st.booleans()),
)
