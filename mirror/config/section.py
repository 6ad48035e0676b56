"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import AliasChoices, BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the file: frozen, with no keys beyond its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @classmethod
    def keys(cls) -> dict[str, tuple[str, ...]]:
        """By the name of a field: the keys it may have in the file, the one it is shown by first."""
        found: dict[str, tuple[str, ...]] = {}
        for name, field in cls.model_fields.items():
            choices = field.validation_alias
            found[name] = (
                tuple(map(str, choices.choices)) if isinstance(choices, AliasChoices) else (field.alias or name,)
            )
        return found
