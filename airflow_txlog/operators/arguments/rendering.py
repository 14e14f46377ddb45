"""Rendering an operator's arguments: texts stay texts, null only if it is allowed, personal data hidden.

With `render_template_as_native_obj` Airflow reads each rendered text as a Python literal, also one without a template:
"42" becomes a number, and "'closed'" loses its quotes. SQL then changes its meaning. Here only an expression returns an
object, and only if it is the whole template. Invariant: a text never changes its type or loses a character.

A SQL text may be the name of a file, `forget.sql`, next to the DAG file or in the DAG's `template_searchpath`.
Airflow's `template_ext` is not used: it would also read a file for a path, a key or a column with such an ending.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jinja2
from airflow.providers.common.compat.sdk import BaseOperator, mask_secret
from jinja2.compiler import CodeGenerator
from jinja2.nativetypes import NativeCodeGenerator, NativeEnvironment
from jinja2.nodes import Impossible, TemplateData
from jinja2.utils import missing

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.errors.names import did_you_mean
from airflow_txlog.operators.arguments.construction import NamedInErrors, name_task
from airflow_txlog.operators.arguments.given import hidden, is_sql_file, null_refusal, texts_of, without_sources
from airflow_txlog.policies.retry import raise_for_airflow

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from jinja2.nodes import Expr


class _Objects(NativeCodeGenerator):
    """Compile a template so that its expressions return objects, literal expressions included."""

    def _output_child_to_const(self, node: Expr, frame: Any, finalize: Any) -> Any:
        # As a constant, `{{ 5 }}` would be the same text as the template `5`.
        if not isinstance(node, TemplateData):
            raise Impossible
        return super()._output_child_to_const(node, frame, finalize)


class TemplatedOperator(BaseOperator, metaclass=NamedInErrors):
    """An operator whose templated texts stay texts, also in a DAG of native objects.

    An unknown argument is refused with the name of the parameter that may be meant.
    """

    def __init__(self, **kwargs: Any) -> None:
        try:
            super().__init__(**kwargs)
        except TypeError:
            # Only what Airflow refuses: a class of the DAG's author may accept more than its constructor names.
            from airflow_txlog.operators.arguments.unknown import unknown_among

            unknown = unknown_among(type(self), kwargs)
            if unknown is None:
                raise
            # Airflow's message shows the values.
            raise unknown from None

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a template as Airflow does, but never read the resulting text as a literal."""
        # Airflow puts rendered values there: those that a mapped task gets from another task.
        if not isinstance(content, str) or (seen_oids is not None and id(content) in seen_oids):
            return super().render_template(content, context, jinja_env, seen_oids)
        return self.render_text(content, context, jinja_env or self.get_template_env())

    def render_text(
        self,
        text: str,
        context: Context,
        env: jinja2.Environment,
        finalize: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Render a template to its text; in a native DAG, a template that is one expression to that expression's
        object.

        `finalize` gets the value of each expression and returns its replacement.
        """
        # Airflow passes the DAG's environment even if the operator overrides the setting.
        given = getattr(self, "render_template_as_native_obj", None)
        is_native = isinstance(env, NativeEnvironment) if given is None else given
        env = env.overlay() if finalize is None else env.overlay(finalize=finalize)
        env.code_generator_class = _Objects if is_native else CodeGenerator
        is_file = text.endswith(tuple(self.template_ext))
        template = env.get_template(text) if is_file else env.from_string(text)
        try:
            parts = list(template.root_render_func(template.new_context(dict(context))))
            # Text of another class, as from `tojson`, becomes plain; an undefined name raises in a strict environment.
            is_object = len(parts) == 1 and not isinstance(parts[0], str | jinja2.Undefined)
            return parts[0] if is_object else "".join(map(str, parts))
        except Exception:
            env.handle_exception()


# The arguments that hold the values of rows.
_PERSONAL = frozenset({"parameters", "keys", "subjects", "requests"})
# Airflow looks for all of them in every line.
_MOST_TEXTS = 100

# How the UI shows what is rendered.
_SHOWN_AS = {
    **dict.fromkeys(("predicate", "partition_predicate", "replace_where", "on"), "sql"),
    **dict.fromkeys(
        (
            *("source", "clauses", "set", "parameters", "keys", "subjects", "requests", "columns", "zorder_by"),
            "spark_conf",
        ),
        "json",
    ),
}


class RenderedOperator(TemplatedOperator):
    """An operator whose templates become null only for a parameter that may be null.

    If it is `sensitive`, Airflow keeps its rendered parameters and keys without their values.
    """

    nullable_parameters: Collection[str] = ()
    sensitive: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.template_fields_renderers = {name: _SHOWN_AS[name] for name in cls.template_fields if name in _SHOWN_AS}

    def check_literals(self) -> None:
        """Raise InvalidJobSpec for errors that no rendering can fix."""

    def given(self, name: str) -> Any:
        """Return the argument of this name.

        `dry_run` is kept as `is_dry_run`: in some releases of Airflow, `dry_run` is a method of every operator.
        """
        return getattr(self, "is_dry_run" if name == "dry_run" else name)

    def resolve_template_files(self) -> None:
        """Replace each SQL text that names a file by the file's content. Airflow calls this when it parses the DAG.

        Raises InvalidJobSpec if there is no such file.
        """
        try:
            has_file = [self._read_file(name, self.get_template_env) for name in self.template_fields]
            self.prepare_template()
            if any(has_file):
                self.check_literals()
        except InvalidJobSpec as error:
            name_task(error, self)
            raise

    def _read_file(self, name: str, env: Callable[[], jinja2.Environment]) -> bool:
        """Read the file that the argument, or the SQL of its source, names. Return whether it named one."""
        value: Any = getattr(self, name, None)
        if isinstance(value, Mapping) and name == "source" and is_sql_file(value.get("sql")):
            setattr(self, name, {**value, "sql": _text_of(f"{name}.sql", value["sql"], env())})
        elif _SHOWN_AS.get(name) == "sql" and is_sql_file(value):
            setattr(self, name, _text_of(name, value, env()))
        else:
            return False
        return True

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a template as Airflow does, unless one of its expressions is None or undefined.

        It then becomes null for a parameter that may be null, and raises InvalidJobSpec anywhere else: as a text it
        would be a value that no row has, a table of that name, or a key that all work shares.
        """
        # Equal texts of one file are one object to Python: a name that is shown anyway must not become asterisks.
        fields = [name for name in self.template_fields if content is getattr(self, name, None)]
        for field in fields:
            # A mapped task has no arguments yet when the DAG is parsed.
            if self._read_file(field, lambda: jinja_env or self.get_template_env()):
                content = getattr(self, field)
        name = next(iter(fields), None) if _PERSONAL.issuperset(fields) else None
        rendered = self._with_nulls(content, context, jinja_env, seen_oids)
        if name is None or not self.sensitive or rendered is None:
            return rendered
        without_values = hidden(name, rendered)
        if without_values is not rendered:
            mask_secret(texts_of(without_sources(name, rendered))[:_MOST_TEXTS])
        return without_values

    def _with_nulls(
        self, content: Any, context: Context, jinja_env: jinja2.Environment | None, seen_oids: set[int] | None
    ) -> Any:
        if not isinstance(content, str) or (seen_oids is not None and id(content) in seen_oids):
            value = super().render_template(content, context, jinja_env, seen_oids)
            if value is None and hasattr(content, "resolve"):
                return self._null_of(content, "is another task's output, which is None", is_all_null=True)
            return value
        is_null = False
        undefined: str | None = None
        env = jinja_env or self.get_template_env()

        def look(value: Any) -> Any:
            nonlocal is_null, undefined
            is_undefined = isinstance(value, env.undefined)
            if is_undefined and value._undefined_obj is missing and isinstance(value._undefined_name, str):
                # The template's own name; that of a member may come from a value.
                near = did_you_mean(value._undefined_name, [name for name in context if isinstance(name, str)])
                undefined = f"{value._undefined_name!r} is not defined.{near}"
            is_null = is_null or value is None or is_undefined
            # An undefined name raises when it becomes a text; the error does not name the argument.
            return "" if is_undefined else value

        rendered = self.render_text(content, context, env, look)
        if not is_null:
            return rendered
        found = f"has the template {content!r}, which renders to None"
        return self._null_of(content, found, undefined, is_all_null=str(rendered) in ("None", ""))

    def _null_of(self, content: Any, found: str, undefined: str | None = None, *, is_all_null: bool) -> None:
        """Return None if all places of the content may be null; else raise InvalidJobSpec."""
        places = [place for name in self.template_fields for place in _places(name, getattr(self, name), content)]
        if is_all_null and places and all(map(self.may_be_null, places)):
            return
        place = next((place for place in places if not self.may_be_null(place)), "an argument")
        raise_for_airflow(InvalidJobSpec(null_refusal(place, found, undefined), argument=place))

    def may_be_null(self, place: str) -> bool:
        """Return whether a template in this place of an argument may render to None."""
        return place in {f"parameters.{name}" for name in self.nullable_parameters}


def _places(name: str, value: Any, content: Any) -> Iterator[str]:
    """Yield the places of a text, or of another task's output, in an argument: `parameters.day`, `keys[2]`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _places(f"{name}.{key}", item, content)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _places(f"{name}[{index}]", item, content)
    elif value is content or (isinstance(value, str) and isinstance(content, str) and value == content):
        yield name


def _text_of(place: str, file: str, env: jinja2.Environment) -> str:
    try:
        if env.loader is None:
            raise LookupError
        return env.loader.get_source(env, file)[0]
    # jinja2 raises a LookupError that names neither the argument nor the searched folders.
    except LookupError:
        raise InvalidJobSpec(
            f"{place} is the name of a template file, {file!r}, which is neither in the folder of the DAG file nor in "
            "the DAG's template_searchpath. Nothing was read.",
            argument=place,
        ) from None
