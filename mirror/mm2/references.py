"""Values that stand elsewhere, and secrets, which shall.

Kafka's configuration providers are named by whoever writes the file, so what `${name:...}` means follows from the class
(`config.providers.<name>.class`); an undeclared name is taken for what it is usually given to.

    ${env:NAME}                 EnvVarConfigProvider     ${env:NAME}
    ${directory:/FOLDER:FILE}   DirectoryConfigProvider  ${file:/FOLDER/FILE}
    ${file:/PATH:KEY}           FileConfigProvider       ${env:...}: one entry of a property file cannot be referred to
    any other                                            ${env:...}
    a secret in clear                                    ${env:...}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

#: `${provider:path:key}` or `${provider:key}` (Kafka `ConfigTransformer`).
REFERENCE: Final = re.compile(r"\$\{([^}:]*):(?:([^}]*?):)?([^}]*)\}")
_BY_NAME: Final = {
    "env": "EnvVarConfigProvider",
    "strimzienv": "EnvVarConfigProvider",
    "directory": "DirectoryConfigProvider",
    "dir": "DirectoryConfigProvider",
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that the new configuration reads, and what it must hold."""

    name: str
    holds: str


@dataclass(slots=True)
class Translator:
    """Turns values with references into ours; `variables` are those that have to be set, by their names."""

    properties: Mapping[str, str]
    variables: dict[str, Variable] = field(default_factory=dict)

    def text(self, value: str, wanted: str, key: str) -> str:
        """A value that is no secret, its references translated; `wanted` names a variable that is needed for one, and
        `key` says whose value it holds.
        """
        at = 0

        def one(found: re.Match[str]) -> str:
            nonlocal at
            at += 1
            return self._reference(found, wanted if at == 1 else f"{wanted}_{at}", key)

        return REFERENCE.sub(one, value)

    def secret(self, value: str, wanted: str, key: str) -> str:
        """A secret: the reference it was given by, or one to a variable that is to hold it."""
        found = REFERENCE.fullmatch(value)
        return self._reference(found, wanted, key) if found else self._variable(wanted, f"the value of {key}")

    def _reference(self, found: re.Match[str], wanted: str, key: str) -> str:
        provider, folder, name = found.groups()
        match self._kind(provider):
            case "EnvVarConfigProvider" if _VARIABLE.fullmatch(name):
                return self._variable(name, f"what it held for MirrorMaker, for {key}")
            case "DirectoryConfigProvider" if folder and name and not {"/", "\n"} & set(name):
                return f"${{file:{PurePosixPath(folder) / name}}}"
            case _:
                return self._variable(wanted, f"the value of {key}, which provider {provider} looked up")

    def _kind(self, provider: str) -> str:
        declared = self.properties.get(f"config.providers.{provider}.class", "").strip()
        return declared.rpartition(".")[2].rpartition("$")[2] or _BY_NAME.get(provider.lower(), "")

    def _variable(self, name: str, holds: str) -> str:
        self.variables.setdefault(name, Variable(name, holds))
        return f"${{env:{name}}}"


def variable_name(*parts: str) -> str:
    """A name for an environment variable, made of anything."""
    joined = "_".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") for part in parts).upper()
    return joined if _VARIABLE.fullmatch(joined) else f"_{joined}"
