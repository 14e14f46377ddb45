"""The trees that Spark's parser and analysis make: every node, by its class. Classic sessions only.

A tree has thousands of parts, and each call into the JVM takes a while; so a tree is walked inside the JVM, by method
handles. The invariant: `Tree` has every node, wherever it stands: in lists, maps, tuples, hints and options too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALYST = "org.apache.spark.sql.catalyst."
EXPRESSIONS = f"{CATALYST}expressions."


def words(text: str) -> frozenset[str]:
    """The words of a text, as lists of names are written in this package."""
    return frozenset(text.split())


def short(name: str) -> str:
    """The name of a class without its package, and without what the compiler adds to an object or a nameless class."""
    return name.rsplit(".", 1)[-1].split("$", 1)[0]


def parser_of(spark: SparkSession) -> Any:
    """Spark's parser, reading the settings of this session."""
    java: Any = spark._jsparkSession
    # The parser reads those of the session that is the thread's active one.
    type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(java)
    return java.sessionState().sqlParser()


class Tree:
    """A node (of a plan or an expression) and every node below it; `classes` has their full names in the same order."""

    def __init__(self, spark: SparkSession, root: Any) -> None:
        via = _functions(spark._jvm)
        level = getattr(root.children().take(0), "$colon$plus")(root)
        nodes = level
        while not level.isEmpty():
            many = level.filter(via.is_many).flatMap(via.itself)
            level = getattr(many, "$plus$plus")(level.filterNot(via.is_many).filter(via.is_product).flatMap(via.parts))
            nodes = getattr(nodes, "$plus$plus")(level.filter(via.is_node))
        self._nodes = nodes
        self.classes = classes_of(spark, nodes)

    def of_class(self, kind: str) -> list[Any]:
        """The nodes of a class, by its short name."""
        return [self._nodes.apply(index) for index, name in enumerate(self.classes) if short(name) == kind]


def classes_of(spark: SparkSession, sequence: Any) -> list[str]:
    """The full name of the class of each item of a Scala sequence."""
    lines = str(sequence.map(_functions(spark._jvm).class_of).mkString("\n"))
    return [line.removeprefix("class ") for line in lines.split("\n")]


def nodes_of(spark: SparkSession, expression: Any) -> Any:
    """An expression and its children and theirs, as a Scala sequence; of an analysed one those are all."""
    return expression.map(_functions(spark._jvm).itself)


@dataclass(frozen=True, kw_only=True)
class _Functions:
    """Methods of the JVM as Scala functions of one argument."""

    itself: Any
    class_of: Any
    parts: Any
    is_node: Any
    is_many: Any
    is_product: Any


@lru_cache(maxsize=1)
def _functions(jvm: Any) -> _Functions:
    """Made once for each JVM: that takes dozens of calls into it."""
    java = jvm.java.lang
    of = java.Class.forName
    handles, methods = java.invoke.MethodHandles, java.invoke.MethodType
    lookup = handles.publicLookup()
    instance_of = lookup.findVirtual(
        of("java.lang.Class"), "isInstance", methods.methodType(java.Boolean.TYPE, of("java.lang.Object"))
    )

    def function(handle: Any) -> Any:
        return java.invoke.MethodHandleProxies.asInterfaceInstance(of("scala.Function1"), handle)

    def is_a(name: str) -> Any:
        return function(instance_of.bindTo(of(name)))

    def method(owner: str, name: str, returns: str) -> Any:
        return function(lookup.findVirtual(of(owner), name, methods.methodType(of(returns))))

    return _Functions(
        itself=function(handles.identity(of("java.lang.Object"))),
        class_of=method("java.lang.Object", "getClass", "java.lang.Class"),
        parts=method("scala.Product", "productIterator", "scala.collection.Iterator"),
        is_node=is_a(f"{CATALYST}trees.TreeNode"),
        is_many=is_a("scala.collection.Iterable"),
        is_product=is_a("scala.Product"),
    )
