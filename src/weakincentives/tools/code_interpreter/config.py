"""What a code interpreter is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from weakincentives.errors import PromptValidationError
from weakincentives.prompt import HostedToolConfig
from weakincentives.tools.domain import domains
from weakincentives.tools.kind import check_kind, check_positive, texts


@dataclass(frozen=True, slots=True)
class CodeInterpreterConfig(HostedToolConfig):
    """The container that code runs in: an existing one by its id, or a new one with these files, memory and network.

    `allowed_domains` opens the network to these domains only; an empty tuple closes it, None leaves it to the provider.
    """

    container_id: str | None = None
    file_ids: tuple[str, ...] = ()
    memory_gb: int | None = None
    allowed_domains: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_kind(self.container_id, str, "CodeInterpreterConfig.container_id", "the id of a container, or None")
        if self.container_id == "":
            raise PromptValidationError("CodeInterpreterConfig.container_id is empty; leave it out for a new one.")
        object.__setattr__(self, "file_ids", texts(self.file_ids, "CodeInterpreterConfig.file_ids"))
        if self.allowed_domains is not None:
            found = domains(self.allowed_domains, "CodeInterpreterConfig.allowed_domains")
            object.__setattr__(self, "allowed_domains", found)
        check_positive(self.memory_gb, "CodeInterpreterConfig.memory_gb")
        new = {"file_ids": self.file_ids != (), "memory_gb": self.memory_gb, "allowed_domains": self.allowed_domains}
        asked = [name for name, value in new.items() if value not in (None, False)]
        if self.container_id is not None and asked:
            raise PromptValidationError(
                f"CodeInterpreterConfig: {', '.join(asked)} belong to a new container and container_id names an "
                "existing one; give one or the other."
            )
