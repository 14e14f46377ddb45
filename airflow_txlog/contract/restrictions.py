"""The Spark settings and source options that a job may have unless the operator gives `unrestricted`.

Both can be templated, so the trigger of a DAG run may supply their content. Both can make Spark load code: a setting by
naming a jar, a class, a module or a program, and an option because Spark passes every option of a file reader to Hadoop
as a setting. So these lists hold only names known to be harmless. A setting tunes: its name is of a family below, and
its value is a number, a size, a time or true or false, which name nothing. A query is checked in the job
(`jobs/sql/query_gate.py`), with Spark's parser. Invariant: a name on no list is refused, also one of a newer Spark.
Source: Spark 4.2, SQLConf, `SessionState.newHadoopConfWithOptions`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from airflow_txlog.contract.operations import FileView, Operation
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.errors.names import did_you_mean

RESTRICTED = ("options", "query", "spark_conf")
"""The values of `unrestricted`: the options of file sources, the SQL of a source, the Spark settings."""


def unrestricted_names(given: str | Collection[str]) -> tuple[str, ...]:
    """Return the author's `unrestricted`, a list of names or one name, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


_PLAIN = re.compile(r"true|false|-?\d+(\.\d+)?(e-?\d+)?\s*([kmgtp]i?b?|b|us|ms|s|m|min|h|d)?", re.IGNORECASE)
_TUNES = re.compile(
    r"""spark\.(
      (sql|shuffle|memory|storage|broadcast|dynamicAllocation|reducer|cleaner|stage|scheduler|io\.compression
        |kryoserializer\.buffer|locality\.wait|rpc|network\.timeout|speculation|excludeOnFailure)(\.[\w.]+)?
      | default\.parallelism | rdd\.compress | task\.(cpus|maxFailures) | files\.(maxPartitionBytes|openCostInBytes)
      | driver\.(cores|maxResultSize|memory|memoryOverhead|memoryOverheadFactor)
      | executor\.(cores|instances|heartbeatInterval|memory|memoryOverhead|memoryOverheadFactor|pyspark\.memory)
      | python\.worker\.(memory|reuse) | ui\.showConsoleProgress | txlog\.executorsWaitSeconds
    )""",
    re.VERBOSE,
)
# Settings whose value is a word or the name of a place, never a class or a file.
_WORDS = (
    (r"spark\.(sql|io|scheduler)\.[\w.]*(codec|[mM]ode|ModeInRead|ModeInWrite|Policy|[tT]imestampType)", r"\w+"),
    (r"spark\.sql\.session\.timeZone", r"[\w/+:-]+"),
    (r"spark\.master", r"local(\[(\d+|\*)(, *\d+)?\])?"),
    (r"spark\.app\.name", r".*"),
    # Spark's UI listens without a login, and shows settings and plans to every user of the machine.
    (r"spark\.ui\.enabled", r"false"),
)

_OF_FILES = """basepath ignorecorruptfiles ignoreinvalidpartitionpaths ignoremissingfiles modifiedafter modifiedbefore
    pathglobfilter recursivefilelookup timezone"""
_OF_TEXT = """charset columnnameofcorruptrecord dateformat enabledatetimeparsingfallback encoding linesep locale mode
    multiline samplingratio singlevariantcolumn timeformat timestampformat timestampntzformat"""
OPTIONS = {
    "parquet": frozenset(f"{_OF_FILES} datetimerebasemode int96rebasemode mergeschema".split()),
    "orc": frozenset(f"{_OF_FILES} mergeschema".split()),
    "csv": frozenset(
        f"""{_OF_FILES} {_OF_TEXT} chartoescapequoteescaping columnpruning comment delimiter emptyvalue enforceschema
        escape header ignoreleadingwhitespace ignoretrailingwhitespace inferschema inputbuffersize maxcharspercolumn
        maxcolumns nanvalue negativeinf nullvalue positiveinf preferdate quote sep unescapedquotehandling""".split()
    ),
    "json": frozenset(
        f"""{_OF_FILES} {_OF_TEXT} allowbackslashescapinganycharacter allowcomments allownonnumericnumbers
        allownumericleadingzeros allowsinglequotes allowunquotedcontrolchars allowunquotedfieldnames
        dropfieldifallnull infertimestamp prefersdecimal primitivesasstring useunsaferow""".split()
    ),
}
"""The options that Spark's readers know, by format and in lower case."""


def only_tunes(spark_conf: Mapping[str, str]) -> bool:
    """Return whether none of the settings can make Spark load code."""
    return all(_tunes(name, value) for name, value in spark_conf.items())


def check_restrictions(operation: Operation, spark_conf: Mapping[str, str], unrestricted: Collection[str]) -> None:
    """Raise InvalidJobSpec for a setting or an option on no list here, unless `unrestricted` names its kind."""
    if "spark_conf" not in unrestricted:
        for name, value in spark_conf.items():
            if not _tunes(name, value):
                if _TUNES.fullmatch(name):
                    raise InvalidJobSpec(
                        f"spark_conf.{name} must be a number, a size such as 2g, a time such as 30s, or true or false. "
                        "Nothing was read.",
                        argument=f"spark_conf.{name}",
                    )
                if name == "spark.master":
                    raise InvalidJobSpec(
                        "spark_conf.spark.master of a task may only be local, such as local[2]. A cluster is named by "
                        'a connection: runner="submit" or runner="connect", with spark_conn_id. Nothing was read.',
                        argument=f"spark_conf.{name}",
                    )
                raise _refused(
                    f"spark_conf.{name}",
                    "spark_conf",
                    "a task's settings may tune Spark by a number, a size, a time or true or false, and this one may "
                    "load code or reach another place. The spark_conf of a connection may hold any setting",
                )
    if "options" not in unrestricted:
        for place, view in operation.parts():
            if not isinstance(view, FileView):
                continue
            for name in view.options:
                if name.lower() not in OPTIONS[view.format]:
                    raise _refused(
                        f"{place}.options.{name}",
                        "options",
                        f"this is no option of Spark's reader of {view.format}, and Spark hands any other on to "
                        "Hadoop as a setting, which may load code",
                        did_you_mean(name, OPTIONS[view.format]),
                    )


def _tunes(name: str, value: str) -> bool:
    if _TUNES.fullmatch(name) and _PLAIN.fullmatch(value.strip()):
        return True
    return any(re.fullmatch(names, name) and re.fullmatch(values, value) for names, values in _WORDS)


def _refused(argument: str, kind: str, why: str, near: str = "") -> InvalidJobSpec:
    return InvalidJobSpec(
        f"{argument.removeprefix('arguments.')} is refused: {why}.{near} If all of the text is your own, and no "
        f'template inserts another person\'s text, allow it with unrestricted=["{kind}"]. Nothing was read.',
        argument=argument,
    )
