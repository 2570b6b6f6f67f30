"""The form of an answer as it goes over the wire: `response_format` and, on /v1/responses, `text`.

What may stand in them shapes the answer, so a field that is not known is an error.
"""

import msgspec


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    pass


class JsonObjectFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_object"):
    pass


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`schema` is a JSON Schema, kept to whether `strict` or not; the rest is for the reader."""

    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_schema"):
    json_schema: NamedSchema


class FlatSchemaFormat(NamedSchema, frozen=True, forbid_unknown_fields=True, tag="json_schema"):
    """How /v1/responses says the same."""


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def is_constrained(
    response_format: ResponseFormat | None, regex: str | None, choice: list[str] | None
) -> bool:
    free = response_format is None or isinstance(response_format, TextFormat)
    return not free or regex is not None or choice is not None


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: TextFormat | JsonObjectFormat | FlatSchemaFormat = TextFormat()

    @property
    def response_format(self) -> ResponseFormat:
        flat = self.format
        if not isinstance(flat, FlatSchemaFormat):
            return flat
        return JsonSchemaFormat(NamedSchema(flat.name, flat.schema, flat.description, flat.strict))
