"""Skills over MCP (SEP-2640): sections that a server of ours offers as skills, and the skills that a server lists."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError

from weakincentives._base.display import shortened
from weakincentives.errors import PromptValidationError
from weakincentives.mcp.listing import MAX_LISTING, MAX_PAGES, MAX_SKILLS, ListedSkill, SkillFile
from weakincentives.mcp.server import AnnouncingServer, Context
from weakincentives.prompt import Section
from weakincentives.skills import SkillSection, skill_files, split_front_matter

logger = logging.getLogger("weakincentives.mcp")

EXTENSION = "io.modelcontextprotocol/skills"
# Of one skill, as the specification limits it.
MAX_FILES, MAX_BYTES = 512, 16 << 20
# Of an Agent Skill.
NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_DESCRIPTION = 1_024


class ListSkills(types.PaginatedRequest[Literal["skills/list"]]):
    method: Literal["skills/list"] = "skills/list"


class GetSkillParams(types.RequestParams):
    uri: str


class GetSkill(types.Request[GetSkillParams, Literal["skills/get"]]):
    method: Literal["skills/get"] = "skills/get"
    params: GetSkillParams


class SkillsResult(types.Result):
    """The answer to either method; its fields are read by hand, because a server may put anything there."""

    skills: tuple[Any, ...] = ()
    skill: Any = None
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class OfferedSkill:
    """A section as a skill: the URI of its `SKILL.md`, and its files by URI."""

    uri: str
    files: Mapping[str, bytes]

    def entry(self) -> dict[str, Any]:
        """The skill as both methods describe it."""
        matter, _ = split_front_matter(self.files[self.uri].decode(), self.uri)
        resources = [
            {"uri": uri, "digest": digest(content), "size": len(content)} for uri, content in self.files.items()
        ]
        return {"uri": self.uri, "frontmatter": matter, "resources": resources}


class OfferedSkills:
    """The sections of a template as skills, for hosts that know the extension; to others they are resources."""

    def __init__(self, sections: Iterable[Section[Any]]) -> None:
        self._skills: dict[str, OfferedSkill] = {}
        for section in sections:
            name = section.key if isinstance(section, SkillSection) else re.sub("[._]", "-", section.key)
            try:
                files = skill_files(section, name)
            except PromptValidationError as error:
                logger.debug("Section '%s' is not offered as a skill: %s", section.key, error)
                continue
            uri = f"skill://{name}/SKILL.md"
            if uri not in self._skills and "SKILL.md" in files:
                self._skills[uri] = OfferedSkill(uri, {f"skill://{name}/{path}": files[path] for path in files})
        self._files = {uri: content for skill in self._skills.values() for uri, content in skill.files.items()}

    def register(self, server: AnnouncingServer) -> None:
        """Declare the extension, and answer its requests."""
        if not self._skills:
            return
        server.extensions[EXTENSION] = {}
        server.add_request_handler("skills/list", types.PaginatedRequestParams, self._list)
        server.add_request_handler("skills/get", GetSkillParams, self._get)
        server.add_request_handler("resources/list", types.PaginatedRequestParams, self._list_resources)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, self._read)

    async def _list(self, context: Context, params: Any) -> dict[str, Any]:
        return _complete(skills=[skill.entry() for skill in self._skills.values()])

    async def _get(self, context: Context, params: GetSkillParams) -> dict[str, Any]:
        if params.uri not in self._skills:
            raise MCPError(types.INVALID_PARAMS, f"There is no skill at '{params.uri}'.")
        return _complete(skill=self._skills[params.uri].entry())

    async def _list_resources(self, context: Context, params: Any) -> types.ListResourcesResult:
        listed = []
        for skill in self._skills.values():
            matter = skill.entry()["frontmatter"]
            name, about = str(matter["name"]), str(matter["description"])
            listed.append(types.Resource(uri=skill.uri, name=name, description=about, mime_type="text/markdown"))
        return types.ListResourcesResult(resources=listed)

    async def _read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        if uri not in self._files:
            raise MCPError(types.INVALID_PARAMS, f"There is no resource at '{uri}'.")
        return types.ReadResourceResult(contents=[_content(uri, self._files[uri])])


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


async def list_skills(client: Client) -> tuple[ListedSkill, ...]:
    """The skills that a server lists, if it declares the extension; entries that break its rules are left out."""
    if EXTENSION not in (client.server_capabilities.extensions or {}):
        return ()
    skills: list[ListedSkill] = []
    cursor = None
    for _ in range(MAX_PAGES):
        params = types.PaginatedRequestParams(cursor=cursor)
        page = await client.session.send_request(ListSkills(params=params), SkillsResult)
        skills += filter(None, map(_listed, page.skills))
        if len(skills) > MAX_SKILLS:
            raise ValueError(f"it lists more than {MAX_SKILLS:,} skills, the most that is accepted")
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(skills)


async def read_skill(client: Client, skill: ListedSkill, uri: str) -> str:
    """The text of a file of a skill, as the server has it now; raises ValueError if it is not what the server says."""
    answer = await client.session.send_request(GetSkill(params=GetSkillParams(uri=skill.uri)), SkillsResult)
    current = _listed(answer.skill)
    if current is None or current.uri != skill.uri:
        raise ValueError(f"the server describes the skill '{skill.name}' wrongly")
    contents = (await client.read_resource(uri, cache_mode="bypass")).contents
    found = [each for each in contents if str(each.uri) == uri]
    if len(found) != 1:
        raise ValueError(f"the server answers '{uri}' with {len(found)} contents")
    raw = _raw(found[0])
    if not current.dynamic:
        listed = next((file for file in current.files if file.uri == uri), None)
        if listed is None:
            raise ValueError(f"'{uri}' is no file of the skill '{skill.name}'")
        if (listed.digest, listed.size) != (digest(raw), len(raw)):
            raise ValueError(f"the content of '{uri}' is not what the server lists: its digest differs")
    if len(raw) > MAX_LISTING:
        raise ValueError(f"'{uri}' has {len(raw):,} bytes, and at most {MAX_LISTING:,} are accepted")
    text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    if uri != skill.uri:
        return text
    matter, body = split_front_matter(text, uri)
    if json.loads(json.dumps(matter, default=str)) != answer.skill["frontmatter"]:
        raise ValueError(f"the front matter of '{uri}' is not what the server lists")
    return body


def _raw(contents: types.TextResourceContents | types.BlobResourceContents) -> bytes:
    if isinstance(contents, types.TextResourceContents):
        return contents.text.encode()
    return base64.b64decode(contents.blob)


def _listed(entry: Any) -> ListedSkill | None:
    """An entry of a listing; None if it breaks a rule of the specification, or is too large."""
    try:
        matter, resources, uri = entry["frontmatter"], entry["resources"], str(entry["uri"])
        name, description = matter["name"], matter["description"]
        dynamic = resources == "dynamic"
        files = () if dynamic else tuple(SkillFile(str(e["uri"]), str(e["digest"]), int(e["size"])) for e in resources)
    except (KeyError, TypeError, ValueError):
        logger.warning("A skill is left out: its entry breaks the rules of the specification.")
        return None
    folder = uri.removesuffix("SKILL.md")
    fits = isinstance(name, str) and isinstance(description, str) and uri.endswith(f"/{name}/SKILL.md")
    fits = fits and NAME.fullmatch(name) is not None
    fits = fits and all(file.uri.startswith(folder) for file in files)
    fits = fits and len(files) <= MAX_FILES and sum(file.size for file in files) <= MAX_BYTES
    if not fits or not description.strip() or not (dynamic or uri in {file.uri for file in files}):
        logger.warning("The skill at %r is left out: its entry breaks the rules of the specification.", uri)
        return None
    return ListedSkill(uri, name, shortened(description, MAX_DESCRIPTION), files, dynamic)


def _complete(**fields: Any) -> dict[str, Any]:
    return {"resultType": "complete", **fields, "ttlMs": 0, "cacheScope": "public"}


def _content(uri: str, content: bytes) -> types.TextResourceContents | types.BlobResourceContents:
    try:
        kind = "text/markdown" if uri.endswith(".md") else "text/plain"
        return types.TextResourceContents(uri=uri, text=content.decode(), mime_type=kind)
    except UnicodeDecodeError:
        return types.BlobResourceContents(uri=uri, blob=base64.b64encode(content).decode())
