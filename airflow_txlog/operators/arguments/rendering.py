"""How the arguments of an operator are rendered: null only where it is meant, and personal data shown in no text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator, mask_secret

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.operators.arguments.given import null_refusal
from airflow_txlog.operators.arguments.personal import hidden, texts_of
from airflow_txlog.policies.retry import raise_for_airflow

if TYPE_CHECKING:
    import jinja2
    from airflow.providers.common.compat.sdk import Context

# The arguments that hold the values of rows.
_PERSONAL = frozenset({"parameters", "keys"})
# Airflow looks for all of them in every line.
_MOST_TEXTS = 100


class RenderedOperator(BaseOperator):
    """An operator whose templates become null only where a parameter may be null.

    Where it is `sensitive`, what Airflow keeps of its rendered parameters and keys has none of their values.
    """

    nullable_parameters: Collection[str] = ()
    sensitive: bool = False

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """What Airflow renders, but for a template with an expression that is None or undefined.

        That is null for a parameter that may be null, and InvalidJobSpec anywhere else: as a text it would be a value
        that no row has, a table of that name, or a key that all work shares.
        """
        # Equal texts of one file are one object to Python: a name that is shown anyway must not become asterisks.
        fields = [name for name in self.template_fields if content is getattr(self, name, None)]
        name = next(iter(fields), None) if _PERSONAL.issuperset(fields) else None
        rendered = self._with_nulls(content, context, jinja_env, seen_oids)
        if name is None or not self.sensitive or rendered is None:
            return rendered
        without_values = hidden(name, rendered)
        if without_values is not rendered:
            mask_secret(texts_of(rendered)[:_MOST_TEXTS])
        return without_values

    def _with_nulls(
        self, content: Any, context: Context, jinja_env: jinja2.Environment | None, seen_oids: set[int] | None
    ) -> Any:
        if not isinstance(content, str):
            value = super().render_template(content, context, jinja_env, seen_oids)
            if value is None and hasattr(content, "resolve"):
                return self._null_of(content, "is another task's output, which is None", is_all_null=True)
            return value
        is_null = False
        env = jinja_env or self.get_template_env()

        def look(value: Any) -> Any:
            nonlocal is_null
            is_undefined = isinstance(value, env.undefined)
            is_null = is_null or value is None or is_undefined
            # An undefined name raises when it becomes a text, without a word on the argument.
            return "" if is_undefined else value

        rendered = super().render_template(content, context, env.overlay(finalize=look), seen_oids)
        if not is_null:
            return rendered
        found = f"has the template {content!r}, which renders to None"
        return self._null_of(content, found, is_all_null=str(rendered) in ("None", ""))

    def _null_of(self, content: Any, found: str, *, is_all_null: bool) -> None:
        """None where all places of the content are parameters that may be null; else raises InvalidJobSpec."""
        places = [place for name in self.template_fields for place in _places(name, getattr(self, name), content)]
        may_be_null = {f"parameters.{name}" for name in self.nullable_parameters}
        if is_all_null and places and may_be_null.issuperset(places):
            return
        place = next((place for place in places if place not in may_be_null), "an argument")
        raise_for_airflow(InvalidJobSpec(null_refusal(place, found), argument=place))


def _places(name: str, value: Any, content: Any) -> Iterator[str]:
    """Where a text, or another task's output, stands in an argument: `parameters.day`, `keys[2]`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _places(f"{name}.{key}", item, content)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _places(f"{name}[{index}]", item, content)
    elif value is content or (isinstance(value, str) and isinstance(content, str) and value == content):
        yield name
