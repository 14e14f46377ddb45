"""How a template becomes a value: the text that its author wrote stays a text, in every DAG.

With `render_template_as_native_obj` Airflow reads each rendered text as a Python literal, also one without a template:
"42" becomes a number, and "'closed'" loses its quotes. A column of texts is then compared with a number, and SQL means
something else. Here only an expression gives an object, and only where it is the whole template. Invariant: a text
never changes its type or loses a character.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jinja2
from airflow.providers.common.compat.sdk import BaseOperator
from jinja2.compiler import CodeGenerator
from jinja2.nativetypes import NativeCodeGenerator, NativeEnvironment
from jinja2.nodes import Impossible, TemplateData

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from jinja2.nodes import Expr


class _Objects(NativeCodeGenerator):
    """A template whose expressions give their objects, and whose literal expressions do too."""

    def _output_child_to_const(self, node: Expr, frame: Any, finalize: Any) -> Any:
        # As a constant, `{{ 5 }}` would be the same text as the template `5`.
        if not isinstance(node, TemplateData):
            raise Impossible
        return super()._output_child_to_const(node, frame, finalize)


class TemplatedOperator(BaseOperator):
    """An operator whose templated texts stay texts, whatever the DAG says of native objects."""

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Airflow's, but for the literals that it would read in texts."""
        # Airflow puts values there that are rendered already: what a mapped task was given by another one.
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
        """A template as its text; in a native DAG, one that is a single expression as that expression's object.

        `finalize` sees the value of each expression, and gives another one.
        """
        # Airflow gives the DAG's environment also where the operator itself says otherwise.
        given = getattr(self, "render_template_as_native_obj", None)
        is_native = isinstance(env, NativeEnvironment) if given is None else given
        env = env.overlay() if finalize is None else env.overlay(finalize=finalize)
        env.code_generator_class = _Objects if is_native else CodeGenerator
        is_file = text.endswith(tuple(self.template_ext))
        template = env.get_template(text) if is_file else env.from_string(text)
        try:
            parts = list(template.root_render_func(template.new_context(dict(context))))
            # A text of another class, as `tojson` gives, becomes a plain one; an undefined name raises, where it may.
            is_object = len(parts) == 1 and not isinstance(parts[0], str | jinja2.Undefined)
            return parts[0] if is_object else "".join(map(str, parts))
        except Exception:
            env.handle_exception()
